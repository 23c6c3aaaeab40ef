"""The parts of a Conformer layer, and the convolutions before the first one.

Every part computes the rows of many recordings at once, [n, d], one recording after another. A recording gets
what it gets alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam import backends
from pybeam.backends import Backend
from pybeam.models.conformer.config import KERNEL, STRIDE
from pybeam.models.conformer.places import Places
from pybeam.models.linear import Linear, PackedLinear
from pybeam.models.transformer.layers import Part
from pybeam.models.transformer.norms import Norm

# of a convolution over time: they stay in a cache while its weights pass
BLOCK_ROWS = 64


class Kernels:
    """Operations without weights. A backend computes them if the linear layers are packed for one."""

    def __init__(self, device: torch.device, is_packed: bool) -> None:
        self._backend = backends.resolve("auto", device) if is_packed else None

    def with_backend(self, backend: Backend) -> Kernels:
        """Return the same, computed by this backend module, or by torch if nothing is packed."""
        kernels = copy.copy(self)
        kernels._backend = backend if self._backend is not None else None
        return kernels

    @property
    def is_packed(self) -> bool:
        """Whether every row is summed in an order of its own."""
        return self._backend is not None

    def products(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute x y^T [n, m] for x [n, D] and y [m, D]."""
        if self._backend is None:
            return x @ y.t()
        # each row is summed in an order of its own, whatever the number of threads
        return PackedLinear(y.contiguous(), None, backend=self._backend)(x)

    def swish(self, x: Tensor) -> Tensor:
        """Compute ``x * sigmoid(x)`` [n, d]."""
        if self._backend is None:
            return F.silu(x)
        return self._backend.glu(torch.cat((x, x), dim=1))


@dataclass(frozen=True, slots=True)
class PlaneSubsampler(Part):
    """Two convolutions over time and frequency with ReLU, then a projection: [E, F] becomes [n, d].

    Both have 3 × 3 weights and stride 2, and see nothing beyond the ends but `right_padding` frames of zeros.
    """

    first: Linear  # [C, 9], with ReLU
    second: Linear  # [C, 9 C], with ReLU
    out: Linear  # [d, C * bands]
    right_padding: int

    def __call__(self, features: Tensor, places: Places) -> Tensor:
        """Return hidden states [n, d] of features [E, F] of all sources, one source after another."""
        x = features[:, :, None]  # [E, F, 1]
        for layer, seen in ((self.first, places.first), (self.second, places.second)):
            # the last row is what lies beyond the ends
            rows = F.pad(x, (0, 0, 0, 0, 0, 1)).index_select(0, seen.view(-1))
            windows = rows.view(-1, KERNEL, *x.shape[1:]).unfold(2, KERNEL, STRIDE)
            num_frames, _, num_bands = windows.shape[:3]  # of [E, 3, F, C, 3]
            x = layer(windows.permute(0, 2, 3, 1, 4).reshape(num_frames * num_bands, -1))
            x = x.view(num_frames, num_bands, -1)  # [E, F, C]
        return self.out(x.transpose(1, 2).flatten(1))


@dataclass(frozen=True, slots=True)
class FeedForward(Part):
    """``x + W2 swish(W1 norm(x))``. The half of a macaron's feed-forward is in W2."""

    norm: Norm
    inner: Linear  # with swish
    out: Linear

    def __call__(self, x: Tensor) -> Tensor:
        return self.out.add(x, self.inner(self.norm(x)))


@dataclass(frozen=True, slots=True)
class ConvolutionModule(Part):
    """``x + W2 swish(norm2(depthwise(glu(W1 norm(x)))))``: a gate, and a convolution over time."""

    norm: Norm
    gate: Linear  # [4 d, d]
    depthwise: Tensor  # [k, 2 d]
    inner_norm: Norm
    out: Linear  # [d, 2 d]
    kernels: Kernels

    def __call__(self, x: Tensor, places: Places, lengths: Sequence[int]) -> Tensor:
        y = self.gate.gated(self.norm(x))  # [n, 2 d]
        if self.kernels.is_packed:
            y = depthwise(y, self.depthwise, lengths)
        else:
            y = torchs_depthwise(y, self.depthwise, places)
        y = self.inner_norm(y)
        return self.out.add(x, self.kernels.swish(y))


def torchs_depthwise(x: Tensor, weight: Tensor, places: Places) -> Tensor:
    """Compute what `depthwise` does in one call of torch, whose sums have an order of its own."""
    line = F.pad(x, (0, 0, 0, 1)).index_select(0, places.line)  # zeros, and rows of x
    kernel = weight.t()[:, None]  # [C, 1, k]
    y = F.conv1d(line.t()[None], kernel, groups=x.shape[1])
    return y[0].t().index_select(0, places.place)


def depthwise(x: Tensor, weight: Tensor, lengths: Sequence[int]) -> Tensor:
    """Compute ``y[i] = sum_j weight[j] * x[i + j - k // 2]`` for every channel, with zeros beyond the ends.

    Args:
        x: [n, C], the rows of one source after another.
        weight: [k, C], k odd.
        lengths: rows of each source.
    """
    size, half = len(weight), len(weight) // 2
    # zeros lie before, between and behind the sources, so that one pass serves all
    source = torch.repeat_interleave(torch.tensor(lengths))
    place = (torch.arange(len(x)) + half * source).to(x.device)  # [n]
    num = len(x) + half * (len(lengths) - 1)
    padded = x.new_zeros(num + 2 * half, x.shape[1])
    padded[place + half] = x
    y, product = x.new_empty(num, x.shape[1]), x.new_empty(BLOCK_ROWS, x.shape[1])
    for first in range(0, num, BLOCK_ROWS):
        own = y[first : first + BLOCK_ROWS]
        rows = len(own)
        torch.mul(padded[first : first + rows], weight[0], out=own)
        for j in range(1, size):
            # two roundings, whatever the processor: one operation could round otherwise at the end of a part
            seen = padded[first + j : first + j + rows]
            own.add_(torch.mul(seen, weight[j], out=product[:rows]))
    return y[place]
