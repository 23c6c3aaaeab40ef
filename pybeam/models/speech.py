"""A transformer that listens: convolutions shorten features of sound before its encoder reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.linear import Linear
from pybeam.models.transformer import Transformer
from pybeam.transfer import to_device

STRIDE = 2


def num_positions(num_frames: int, num_layers: int) -> int:
    """What so many frames become behind so many convolutions."""
    for _ in range(num_layers):
        num_frames = -(-num_frames // STRIDE)
    return num_frames


class Subsampler:
    """Convolutions over time with gates: ``x <- glu(conv(x))``, each halves the number of positions.

    Each has stride 2 and zeros beyond the ends: from [E, C] it makes [(E + 1) // 2, C'], where
    ``glu(a, b) = a * sigmoid(b)``. Written as matrix products over windows of k positions, of all
    sources at once and without padding, so that they are as exact as the rest of the model: what a source
    gets does not depend on what is beside it.

    Args:
        layers: linear layers [2 C', k * C], windows flattened position by position.
        kernel_sizes: k of each, odd.

    See Synnaeve et al. 2019 (arXiv:1911.08460).
    """

    def __init__(self, layers: Sequence[Linear], kernel_sizes: Sequence[int]) -> None:
        self.layers, self.kernel_sizes = layers, kernel_sizes

    def length(self, num_frames: int) -> int:
        """Positions that so many frames become."""
        return num_positions(num_frames, len(self.kernel_sizes))

    def __call__(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """Hidden states [n, d] of features [sum(lengths), F], of sources one after another."""
        length = np.asarray(lengths, dtype=np.int64)  # [A]
        for layer, size in zip(self.layers, self.kernel_sizes, strict=True):
            window = to_device(_windows(length, size), torch.long, x.device)  # [n, k]
            # the last row is what lies beyond the ends
            padded = F.pad(x, (0, 0, 0, 1))
            x = F.glu(layer(padded[window].flatten(1)), dim=1)  # [n, C]
            length = -(-length // STRIDE)
        return x


def _windows(length: np.ndarray, size: int) -> np.ndarray:
    """[n, size]: the rows that each output position of each source sees; sum(length) for none."""
    halved = -(-length // STRIDE)  # [A]
    first = np.repeat(np.cumsum(length) - length, halved)[:, None]  # [n, 1], rows before the source
    end = first + np.repeat(length, halved)[:, None]
    position = np.arange(halved.sum()) - np.repeat(np.cumsum(halved) - halved, halved)  # [n]
    row = first + STRIDE * position[:, None] + np.arange(size) - size // 2  # [n, size]
    return np.where((row < first) | (row >= end), length.sum(), row)


class SpeechTransformer(Transformer):
    """Speech2Text (fairseq's S2T); made by `pybeam.load_model`.

    A source is a float tensor of features [E, F], one line per frame, as `pybeam.audio.FeatureExtractor`
    makes them. |x|, by which lengths are limited and rewarded, is the number of the encoder's positions,
    not of frames. transformers' own batches also convolve the padding of shorter recordings; here each
    gets what it gets alone.
    """

    takes_features = True

    def __init__(self, *, front: Subsampler, **parts) -> None:
        super().__init__(**parts)
        self.front = front

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
                f"{expected}, but is {type(source).__name__}; see pybeam.audio.load_feature_extractor"
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
        return num_positions(source.shape[0], len(self.config.front.kernel_sizes))

    def embed_sources(self, sources: Sequence[Tensor], position: Tensor) -> Tensor:
        """What the encoder's layers get [n, d] of checked sources, one after another."""
        features = to_device(torch.cat(list(sources)), self.dtype, self.device)
        return self.encoder.place(self.front(features, [len(one) for one in sources]), position)
