"""A transformer that listens: convolutions shorten features of sound before its encoder reads them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.transfer import to_device
from pybeam.models.linear import Linear
from pybeam.models.transformer.config import GATE, Convolution, FrontConfig
from pybeam.models.transformer.model import Transformer


class Subsampler:
    """Convolutions over time: ``x <- f(conv(x))``, f a gate (Speech2Text) or GELU (Whisper).

    Each has zeros beyond the ends: with stride s it makes [ceil(E / s), C'] of [E, C]. A gate halves the
    channels, ``glu(a, b) = a * sigmoid(b)``. Written as matrix products over windows of k positions, of all
    sources at once and without padding, so that they are as exact as the rest of the model: what a source
    gets does not depend on what is beside it.

    Args:
        layers: linear layers [C', k * C], or [2 C', k * C] before a gate, windows flattened position by
            position; with their activation, unless it is a gate.
        config: k and s of each, and what f is.

    See Synnaeve et al. 2019 (arXiv:1911.08460) for gates and Radford et al. 2022 (arXiv:2212.04356).
    """

    def __init__(self, layers: Sequence[Linear], config: FrontConfig) -> None:
        self.layers, self.config = layers, config

    def with_backend(self, backend: ModuleType) -> Subsampler:
        """The same convolutions, computed by this backend module."""
        return Subsampler([layer.with_backend(backend) for layer in self.layers], self.config)

    def __call__(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """Hidden states [n, d] of features [sum(lengths), F], of sources one after another."""
        length = np.asarray(lengths, dtype=np.int64)  # [A]
        for layer, convolution in zip(self.layers, self.config.convolutions, strict=True):
            rows, length = _windows(length, convolution)
            window = to_device(rows, torch.long, x.device)  # [n, k]
            # the last row is what lies beyond the ends
            padded = F.pad(x, (0, 0, 0, 1))
            windows = padded[window].flatten(1)  # [n, k * C]
            is_gated = self.config.activation == GATE
            x = layer.gated(windows) if is_gated else layer(windows)  # [n, C']
        return x


def _windows(length: np.ndarray, convolution: Convolution) -> tuple[np.ndarray, np.ndarray]:
    """[n, k], the rows that each output position of each source sees, sum(length) for none; and how many
    positions each source then has [A]."""
    size, stride = convolution.kernel_size, convolution.stride
    after = -(-length // stride)  # [A]
    first = np.repeat(np.cumsum(length) - length, after)[:, None]  # [n, 1], rows before the source
    end = first + np.repeat(length, after)[:, None]
    position = np.arange(after.sum()) - np.repeat(np.cumsum(after) - after, after)  # [n]
    row = first + stride * position[:, None] + np.arange(size) - size // 2  # [n, k]
    return np.where((row < first) | (row >= end), length.sum(), row), after


class SpeechTransformer(Transformer):
    """Speech2Text (fairseq's S2T) or Whisper; made by `pybeam.load_model`.

    A source is a float tensor of features [E, F], one line per frame, as `pybeam.speech` makes
    them. |x|, by which lengths are limited and rewarded, is the number of the encoder's positions, not
    of frames.
    transformers' own batches also convolve the padding of shorter recordings; here each gets what it gets
    alone. Whisper was trained on 30 seconds, to which its features are padded; fewer frames are taken as
    they are and become fewer positions.
    """

    takes_features = True

    def __init__(self, *, front: Subsampler, **parts) -> None:
        super().__init__(**parts)
        self.front = front

    def with_backend(self, backend: ModuleType) -> Self:
        model = super().with_backend(backend)
        model.front = self.front.with_backend(backend)
        return model

    def check(self, source) -> Tensor:
        """The features as a float32 tensor [E, F] on the host.

        Raises:
            TypeError: the source is no float tensor or array.
            ValueError: it has another shape, is too long, or holds NaN or infinities.
        """
        num_features = self.config.front.num_features
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
        if length > self.max_source_positions:
            raise ValueError(
                f"`source` must have at most {self.max_source_positions} positions "
                f"(`max_source_positions`), but its {source.shape[0]} frames become {length}; split the "
                "recording"
            )
        features = source.detach().cpu().float()
        if not features.isfinite().all():
            raise ValueError(f"{expected}, but holds NaN or infinities; is the recording sound?")
        return features

    def source_length(self, source: Tensor) -> int:
        """Number of the encoder's positions."""
        return self.config.front.num_positions(source.shape[0])

    def embed_sources(self, sources: Sequence[Tensor], position: Tensor) -> Tensor:
        """What the encoder's layers get [n, d] of checked sources, one after another."""
        features = to_device(torch.cat(list(sources)), self.dtype, self.device)
        return self.encoder.place(self.front(features, [len(one) for one in sources]), position)
