"""The convolutions that shorten what a speech encoder reads, as a config tells their shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybeam.models.conformer.config import MAX_FEATURES, ConformerConfig, read_conformer

GATE = "glu"  # a * sigmoid(b) of channels a and b


@dataclass(frozen=True)
class Convolution:
    """A convolution over time. There are zeros beyond the ends: n positions become ceil(n / stride)."""

    name: str  # prefix of its weights, below "encoder."
    kernel_size: int  # odd
    stride: int
    num_channels: int  # before a gate halves them


@dataclass(frozen=True)
class FrontConfig:
    """Shapes of the convolutions that shorten what a speech encoder reads."""

    num_features: int
    convolutions: tuple[Convolution, ...]
    activation: str  # behind each convolution: GATE or "gelu"

    def num_positions(self, num_frames: int) -> int:
        """Number of the encoder's positions for so many frames."""
        for convolution in self.convolutions:
            num_frames = -(-num_frames // convolution.stride)
        return num_frames

    def num_frames(self, num_positions: int) -> int:
        """The most frames of sources that have so many positions together."""
        return num_positions * math.prod(convolution.stride for convolution in self.convolutions)


def _gated_front(path: Path, config: dict[str, Any], size: Callable[..., int]) -> FrontConfig:
    kernels = config.get("conv_kernel_sizes")
    if (
        not isinstance(kernels, list)
        or not kernels
        or not all(isinstance(kernel, int) and kernel > 0 and kernel % 2 for kernel in kernels)
        or len(kernels) != config.get("num_conv_layers", len(kernels))
    ):
        raise ValueError(
            f"`conv_kernel_sizes` in {path} must be `num_conv_layers` odd integers, but is {kernels!r}"
        )
    channels = size("conv_channels")
    if channels % 2:
        raise ValueError(f"`conv_channels` in {path} must be even, but is {channels}")
    num_channels = config.get("input_channels", 1)
    if num_channels != 1:
        raise ValueError(f"`input_channels` in {path} must be 1, but is {num_channels!r}")
    rows = [channels] * (len(kernels) - 1) + [2 * size("d_model")]
    convolutions = tuple(
        Convolution(f"conv.conv_layers.{i}", kernel, 2, num)
        for i, (kernel, num) in enumerate(zip(kernels, rows, strict=True))
    )
    return FrontConfig(size("input_feat_per_channel", MAX_FEATURES), convolutions, GATE)


def _whisper_front(path: Path, config: dict[str, Any], size: Callable[..., int]) -> FrontConfig:
    d = size("d_model")
    convolutions = Convolution("conv1", 3, 1, d), Convolution("conv2", 3, 2, d)
    return FrontConfig(size("num_mel_bins", MAX_FEATURES), convolutions, "gelu")


FRONTS: dict[str, Callable[..., FrontConfig | ConformerConfig]] = {
    "speech_to_text": _gated_front,
    "whisper": _whisper_front,
    "fireredasr": read_conformer,
}
