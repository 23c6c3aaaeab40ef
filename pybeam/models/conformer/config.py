"""Shapes of a Conformer encoder, from `config.json`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KERNEL, STRIDE = 3, 2  # of the two convolutions over time and frequency
MAX_PADDING = 1 << 10  # frames, which every recording pays for
# of a frame of sound, as for the extractors of features
MAX_FEATURES = 4096


@dataclass(frozen=True)
class ConformerConfig:
    """Shapes that an encoder of plain transformer layers does not have."""

    num_features: int
    num_channels: int  # of the two convolutions over time and frequency
    kernel_size: int  # odd, of the convolution over time in every layer
    right_padding: int  # frames of zeros behind every recording
    has_ctc: bool = False  # whether there is a layer of CTC beside the decoder

    def num_positions(self, num_frames: int) -> int:
        """Number of the encoder's positions for so many frames: about a quarter."""
        if num_frames == 0:
            return 0
        return shortened(num_frames + self.right_padding)

    @property
    def num_bands(self) -> int:
        """Places that the two convolutions make of the features."""
        return shortened(self.num_features)


def shortened(size: int) -> int:
    """Return how many places two convolutions without padding make of so many."""
    for _ in range(2):
        size = max(0, (size - KERNEL) // STRIDE + 1)
    return size


def read_conformer(path: Path, config: dict[str, Any], size: Callable[..., int]) -> ConformerConfig:
    """Read the shapes that `pybeam.export.convert_fireredasr` writes.

    Raises:
        ValueError: one is missing or wrong.
    """
    shapes = ConformerConfig(
        num_features=size("num_mel_bins", MAX_FEATURES),
        num_channels=size("conv_channels"),
        kernel_size=size("conv_depthwise_kernel_size"),
        right_padding=config.get("right_padding", 0),
        has_ctc=config.get("has_ctc", False),
    )
    if not isinstance(shapes.has_ctc, bool):
        raise ValueError(f"`has_ctc` in {path} must be true or false, but is {shapes.has_ctc!r}")
    if shapes.kernel_size % 2 == 0:
        raise ValueError(
            f"`conv_depthwise_kernel_size` in {path} must be odd, but is {shapes.kernel_size}"
        )
    if type(shapes.right_padding) is not int or not 0 <= shapes.right_padding <= MAX_PADDING:
        raise ValueError(
            f"`right_padding` in {path} must be 0 to {MAX_PADDING} frames, but is {shapes.right_padding!r}"
        )
    if shapes.num_bands == 0:
        raise ValueError(
            f"`num_mel_bins` in {path} must be at least 7, but is {shapes.num_features}"
        )
    if size("d_model") % 2:
        raise ValueError(f"`d_model` in {path} must be even, but is {config['d_model']}")
    return shapes
