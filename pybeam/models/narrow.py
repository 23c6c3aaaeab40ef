"""Linear layers on a GPU whose weights have 8 or 4 bits, and whose inputs are not rounded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pybeam.backends import Backend, int4
from pybeam.backends.narrow import dequantised, stored
from pybeam.backends.packing import Quantised
from pybeam.models.linear import PlainLinear

# numbers that are wide at a time
PART = 1 << 24


class NarrowLinear(PlainLinear):
    """y = act(x W^T + b), where W is ``q_ij s_i`` (`quantise`), or in int4 ``q_ij s_ig`` (`quantise_groups`).

    Weights that are read from memory are a half or a quarter of bfloat16's. Few rows are multiplied by one
    kernel, which widens weights in registers (`pybeam.triton_kernels.product`): sums over q_ij, in float32,
    are multiplied by s_i, and ``q_ij s_ig`` is rounded to x's dtype. For more rows W becomes a matrix of x's
    dtype first, some outputs at a time, which torch multiplies: that is slower than weights of 16 bits.

    Args:
        weight: q [out, in] int8, and scales [out] float32 or [out, groups] bfloat16.
        bias: [out]; None: there is none.
        activation: its name in config.json.

    Attributes:
        narrow: q and s as kernels read them, see `pybeam.backends.narrow.stored`.
    """

    activates_in_product = False

    def __init__(
        self, weight: Quantised, bias: Tensor | None, activation: str | None = None
    ) -> None:
        self._depth = weight.q.shape[1]
        self.narrow = stored(weight)
        super().__init__(self.narrow.q, bias, activation)

    def with_backend(self, backend: Backend) -> PlainLinear:
        return of_few_rows(self, backend)

    def without_bias(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._multiplied(x, None), self.bias

    def _product(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        y = self._multiplied(x, memory)
        return y if self.bias is None else y.add_(self.bias)

    def _multiplied(self, x: Tensor, memory: Tensor | None) -> Tensor:
        """x W^T [n, out], in memory of its own or in this."""
        n = len(x)
        y = x.new_empty(n, self.num_columns) if memory is None else memory[:n]
        for part, weight in _parts(self.narrow, self._depth):
            y[:, part] = x @ dequantised(weight, self._depth, x.dtype).t()
        return y


def of_few_rows(linear: PlainLinear, backend: Backend) -> PlainLinear:
    """Return a layer with a `narrow`, whose few rows the backend multiplies if it has such products."""
    if backend.few_rows is None:
        return linear
    # its module imports layers of transformers
    from pybeam.models.transformer.few_rows import FewRowsLinear

    return FewRowsLinear(linear, backend.few_rows)


def _parts(weight: Quantised, depth: int) -> Iterator[tuple[slice, Quantised]]:
    """Yield outputs of a matrix, as many at a time as may be wide."""
    step = max(1, PART // max(1, depth))
    for first in range(0, len(weight.q), step):
        part = slice(first, first + step)
        yield part, Quantised(weight.q[part], weight.scale[part])


def wide(weight: Quantised, dtype: torch.dtype) -> Tensor:
    """Return a token table [V, d] in a dtype, as an embedding reads it."""
    q, scale = weight
    table = torch.empty(q.shape, dtype=dtype, device=q.device)
    for part, own in _parts(weight, q.shape[1]):
        is_grouped = scale.ndim == 2
        table[part] = int4.dequantised(own) if is_grouped else own.q.float() * own.scale[:, None]
    return table
