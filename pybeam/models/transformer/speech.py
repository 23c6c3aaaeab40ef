"""A transformer for speech: convolutions shorten features of sound before its encoder reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.packing import Quantised
from pybeam.backends.pinned import Floats, padded
from pybeam.backends.transfer import to_device
from pybeam.models.linear import Linear
from pybeam.models.transformer.fronts import GATE, Convolution, FrontConfig
from pybeam.models.transformer.model import Transformer, Weights
from pybeam.models.transformer.sources import SharedFeatures, TextSources
from pybeam.models.weights import WeightReader


class Subsampler:
    """Convolutions over time: ``x <- f(conv(x))``, where f is a gate (Speech2Text) or GELU (Whisper).

    A convolution of stride s turns [E, C] into [ceil(E / s), C']; there are zeros beyond the ends. A gate
    halves the channels: ``glu(a, b) = a * sigmoid(b)``. Convolutions are matrix products over windows of
    k positions, for all sources at once and without padding. So a source's result does not depend on
    what is beside it.

    Args:
        layers: linear layers [C', k * C], or [2 C', k * C] before a gate, windows flattened position by
            position; with their activation, unless it is a gate.
        config: k and s of each convolution, and what f is.

    See Synnaeve et al. 2019 (arXiv:1911.08460) for gates and Radford et al. 2022 (arXiv:2212.04356).
    """

    def __init__(self, layers: Sequence[Linear], config: FrontConfig) -> None:
        self.layers, self.config = layers, config

    @classmethod
    def read(cls, reader: WeightReader, config: FrontConfig) -> Subsampler:
        """Build the convolutions of a config from their weights."""
        layers, columns = [], config.num_features
        is_gated = config.activation == GATE
        for convolution in config.convolutions:
            rows, name = convolution.num_channels, f"encoder.{convolution.name}"
            shape = rows, columns, convolution.kernel_size
            weight = by_position(reader.matrix([f"{name}.weight"], *shape))
            bias = reader.vector(f"{name}.bias", rows)
            layers.append(reader.linear(weight, bias, None if is_gated else config.activation))
            columns = rows // 2 if is_gated else rows
        return cls(layers, config)

    def with_backend(self, backend: Backend) -> Subsampler:
        """The same convolutions, computed by this backend module."""
        return Subsampler([layer.with_backend(backend) for layer in self.layers], self.config)

    def __call__(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return hidden states [n, d] for features [sum(lengths), F], one source after another."""
        windows = windows_of(self.config, tuple(lengths))
        return self.over(x, [to_device(rows, torch.long, x.device) for rows in windows])

    def over(self, x: Tensor, windows: Sequence[Tensor]) -> Tensor:
        """Return hidden states of features x [n, F], where these windows on the device are `windows_of`'s."""
        for layer, window in zip(self.layers, windows, strict=True):
            # the last row is what lies beyond the ends
            extended = F.pad(x, (0, 0, 0, 1))
            # rows are copied whole, and not number by number as an index in brackets does
            seen = extended.index_select(0, window.view(-1)).view(len(window), -1)  # [n, k * C]
            is_gated = self.config.activation == GATE
            x = layer.gated(seen) if is_gated else layer(seen)  # [n, C']
        return x


# those of whole windows of Whisper come again and again
@lru_cache(maxsize=8)
def windows_of(
    config: FrontConfig, lengths: tuple[int, ...], num_positions: int | None = None
) -> tuple[np.ndarray, ...]:
    """Return the rows [n, k] that each position behind each convolution sees, for sources of so many frames.

    Sources stand one after another. The number behind the last row stands for no row. With `num_positions`
    there are so many behind the last convolution, and before it as many as these can have. Those of no
    source see no row.
    """
    length, windows = np.asarray(lengths, dtype=np.int64), []  # [A]
    num = None if num_positions is None else config.num_frames(num_positions)
    for convolution in config.convolutions:
        rows, after = _windows(length, convolution, length.sum() if num is None else num)
        if num is not None:
            before, num = num, num // convolution.stride
            rows = padded(rows, num, convolution.kernel_size, fill=before)
        windows.append(rows)
        length = after
    return tuple(windows)


def _windows(
    length: np.ndarray, convolution: Convolution, nothing: int
) -> tuple[np.ndarray, np.ndarray]:
    """The rows [n, k] that each output position sees, and how many positions each source then has [A].

    Sources stand one after another. The number `nothing` stands for no row.
    """
    size, stride = convolution.kernel_size, convolution.stride
    after = -(-length // stride)  # [A]
    first = np.repeat(np.cumsum(length) - length, after)[:, None]  # [n, 1], rows before the source
    end = first + np.repeat(length, after)[:, None]
    position = np.arange(after.sum()) - np.repeat(np.cumsum(after) - after, after)  # [n]
    row = first + stride * position[:, None] + np.arange(size) - size // 2  # [n, k]
    return np.where((row < first) | (row >= end), nothing, row), after


def by_position(weight: Tensor | Quantised) -> Tensor | Quantised:
    """Flatten windows of a convolution [rows, columns, k], position by position: [rows, k * columns]."""
    windows = weight.q if isinstance(weight, Quantised) else weight
    flat = windows.transpose(1, 2).flatten(1).contiguous()
    return Quantised(flat, weight.scale) if isinstance(weight, Quantised) else flat


class SpeechSources(TextSources):
    """A model whose sources are float features [E, F], a line per frame, as `pybeam.speech` makes them.

    |x|, the length in limits and rewards, is the number of the encoder's positions, not of frames.
    """

    takes_features = True

    def check(self, source: Any) -> Any:
        """Return the features as a float32 tensor [E, F] on the host; `SharedFeatures` stay what they are.

        Raises:
            TypeError: the source is no float tensor or array.
            ValueError: the source has another shape, is too long, or holds NaN or infinities.
        """
        if isinstance(source, SharedFeatures):
            if source.states is None:
                source.features = self.check(source.features)
            return source
        num_features, limit = self.config.sound.num_features, self.config.max_source_positions
        expected = f"`source` must be a float tensor of features [E, {num_features}]"
        if isinstance(source, np.ndarray):
            source = torch.from_numpy(source)
        if not isinstance(source, Tensor):
            raise TypeError(
                f"{expected}, but is {type(source).__name__}; "
                "see pybeam.speech.load_feature_extractor"
            )
        if not source.dtype.is_floating_point:
            raise TypeError(f"{expected}, but holds {source.dtype}")
        if source.ndim != 2 or source.shape[1] != num_features:
            raise ValueError(
                f"{expected}, but is {list(source.shape)}; give one recording per request, and the "
                "features that the model was trained on"
            )
        length = self.source_length(source)
        assert limit is not None
        if length > limit:
            raise ValueError(
                f"`source` must have at most {limit} positions (`max_source_positions`), but its "
                f"{source.shape[0]} frames become {length}; split the recording"
            )
        features = source.detach().cpu().float()
        if not features.isfinite().all():
            raise ValueError(f"{expected}, but holds NaN or infinities; is the recording sound?")
        return features

    def source_length(self, source: Tensor | SharedFeatures) -> int:
        """Number of the encoder's positions."""
        return self.config.sound.num_positions(SharedFeatures.of(source).features.shape[0])


class SpeechTransformer(SpeechSources, Transformer):
    """Speech2Text (fairseq's S2T) or Whisper; made by `pybeam.load_model`.

    A source is a float tensor of features [E, F], one line per frame, as `pybeam.speech` makes them. ``|x|``,
    by which lengths are limited and rewarded, is the number of the encoder's positions, not of frames.

    Every recording gets what it gets alone, whereas batches of transformers also convolve the padding of
    shorter recordings. Whisper was trained on 30 seconds, and its features are padded to that. Fewer
    frames are taken as they are and become fewer positions.
    """

    def __init__(self, weights: Weights, front: Subsampler) -> None:
        super().__init__(weights)
        self.front = front

    def encoder_inputs(self, sources: Sequence[Tensor], position: Tensor) -> Tensor:
        """Return the inputs [n, d] of the encoder's layers for checked sources, one after another."""
        features = to_device(torch.cat(list(sources)), self.dtype, self.device)
        return self.encoder.place(self.front(features, [len(one) for one in sources]), position)

    def encoder_numbers(
        self, sources: Sequence[Any], num_sources: int, num_positions: int
    ) -> tuple[list[Any], Callable[..., Tensor]]:
        """Return the numbers of sources for so many positions, and what makes `encoder_inputs` of them."""
        features = [SharedFeatures.of(source).features.numpy() for source in sources]
        shape = self.front.config.num_frames(num_positions), self.front.config.num_features
        windows = windows_of(self.front.config, tuple(map(len, features)), num_positions)

        def inputs(position: Tensor, features: Tensor, *windows: Tensor) -> Tensor:
            x = features.view(torch.float32).to(self.dtype)
            return self.encoder.place(self.front.over(x, windows), position)

        return [Floats(shape, features), *windows], inputs
