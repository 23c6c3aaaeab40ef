"""Convolutions of Wav2Vec2: of sound, and one whose results stand for positions.

They are products of matrices over windows, recording by recording and without padding. A recording gets what
it gets alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.torch_layers import FUNCTIONS
from pybeam.models.linear import ACTIVATIONS, Linear
from pybeam.models.transformer.norms import Norm, Part

# windows that are copied at a time: with 512 channels they stay in a cache
ROWS = 256
EPSILON = 1e-5  # of norms of convolutions


@dataclass(frozen=True, slots=True)
class TimeNorm:
    """Normalise every channel over the time of a recording: [n, C]."""

    weight: Tensor  # [C]
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, 0, correction=0)
        return (x - mean) * (variance + EPSILON).rsqrt() * self.weight + self.bias


@dataclass(frozen=True, slots=True)
class SoundConvolution(Part):
    """``f(norm(conv(x)))``: [n, C] becomes [m, C']."""

    linear: Linear  # [C', C k], windows channel by channel; with f where there is no norm
    kernel_size: int
    stride: int
    norm: Norm | TimeNorm | None
    activation: str

    def __call__(self, x: Tensor) -> Tensor:
        windows = x.unfold(0, self.kernel_size, self.stride)  # [m, C, k]
        y = torch.cat([self.linear(some.flatten(1)) for some in windows.split(ROWS)])
        if self.norm is None:
            return y
        return FUNCTIONS[ACTIVATIONS[self.activation]](self.norm(y))


@dataclass(frozen=True, slots=True)
class PositionConvolution(Part):
    """``x + f(conv(x))``, where each group of channels sees itself alone. There are zeros beyond the ends.

    A frame sees k // 2 frames before it, and as many behind it as are left of k.
    """

    groups: tuple[Linear, ...]  # [d / groups, d / groups * k], windows channel by channel; with f
    kernel_size: int

    def __call__(self, x: Tensor, lengths: Sequence[int]) -> Tensor:
        """Compute it for rows [n, d] of one recording after another."""
        return torch.cat([own + self._positions(own) for own in x.split(list(lengths))])

    def _positions(self, x: Tensor) -> Tensor:
        if not len(x):
            return x
        half, size = self.kernel_size // 2, x.shape[1] // len(self.groups)
        padded = F.pad(x, (0, 0, half, half))
        windows = padded.unfold(0, self.kernel_size, 1)[: len(x)]  # [n, d, k]
        return torch.cat(
            [
                torch.cat([linear(some.flatten(1)) for some in own.split(ROWS)])
                for own, linear in zip(windows.split(size, 1), self.groups, strict=True)
            ],
            1,
        )
