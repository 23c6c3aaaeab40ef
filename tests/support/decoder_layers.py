"""Random layers of a decoder with rows in the middle of hypotheses, computed in one launch or in many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from pybeam.backends.torch_layers import Activation
from pybeam.contracts import Cells, NewNodes
from pybeam.triton_kernels.attention import tree_attention
from pybeam.triton_kernels.persistent import (
    LayersShape,
    Programs,
    RowsSee,
    decoder_layers,
    exchange_for,
)
from pybeam.triton_kernels.persistent.exchange import Exchange
from pybeam.triton_kernels.product import product

# depth and columns of a layer's products in widths and inner widths, and which have a norm
QKV, OWN_OUT, QUERY, CROSS_OUT, INNER, INNER_OUT = range(6)
NORMED = (QKV, QUERY, INNER)


@dataclass(frozen=True)
class LayersCase:
    """Layers, and rows of sources that have so many nodes, those of the rows included."""

    shape: LayersShape
    products: list[list[tuple[Tensor | None, ...]]]  # [layers][6]: scale, shift, W, b
    own_pools: list[Tensor]
    cross_pools: list[Tensor]
    states: Tensor
    cells: Cells
    new_cell: Tensor
    source_cells: Cells

    @cached_property
    def exchange(self) -> Exchange:
        x = self.states
        return exchange_for(self.shape, len(self.products), len(x), x.dtype, x.device)

    @property
    def addresses(self) -> Tensor:
        """The table that the launch reads."""
        lines = [
            [0 if part is None else part.data_ptr() for parts in layer for part in parts]
            + [own.data_ptr(), cross.data_ptr()]
            for layer, own, cross in zip(
                self.products, self.own_pools, self.cross_pools, strict=True
            )
        ]
        return torch.tensor(lines, dtype=torch.int64, device=self.states.device)

    def in_one(self, programs: Programs, addresses: Tensor | None = None) -> Tensor:
        """The states [R, d] behind all layers; new keys and values go to `own_pools`."""
        seen = RowsSee(self.cells, self.new_cell, len(self.own_pools[0]), self.source_cells)
        addresses = self.addresses if addresses is None else addresses
        given = self.shape, seen, self.exchange, programs
        return decoder_layers(self.states.clone(), addresses, *given)

    def by_parts(self) -> Tensor:
        """The same with a launch for each part."""
        shape, x = self.shape, self.states.clone()
        heads = shape.num_heads, shape.width // shape.num_heads
        for products, *pools in zip(self.products, self.own_pools, self.cross_pools, strict=True):
            own, cross = ((pool[:, 0], pool[:, 1]) for pool in pools)
            x, qkv = self._normed(x, products[QKV])
            query, key, value = qkv.view(len(x), 3, *heads).unbind(1)
            new = NewNodes(key, value, self.new_cell)
            y = tree_attention(query, *own, self.cells, shape.scale, None, new)
            x = self._added(x, y.flatten(1), products[OWN_OUT])
            x, query = self._normed(x, products[QUERY])
            y = tree_attention(query.view(-1, *heads), *cross, self.source_cells, shape.scale)
            x = self._added(x, y.flatten(1), products[CROSS_OUT])
            x, y = self._normed(x, products[INNER], shape.activation)
            x = self._added(x, y, products[INNER_OUT])
        return x

    def _normed(
        self, x: Tensor, parts: Sequence, activation: int = Activation.NONE
    ) -> tuple[Tensor, Tensor]:
        """Return the residual of a later sum, and the product of the normalised rows."""
        scale, shift, weight, bias = parts
        norm = None if scale is None else (scale, shift, self.shape.epsilon)
        y = product(x, weight, bias, activation, None, norm)
        if not self.shape.is_pre_norm and norm is not None:
            # by the same kernel, so that it has the same bits
            one = torch.eye(self.shape.width, dtype=x.dtype, device=x.device)
            x = product(x, one, None, Activation.NONE, None, norm)
        return x, y

    def _added(self, x: Tensor, y: Tensor, parts: Sequence) -> Tensor:
        return product(y, *parts[2:], Activation.NONE, x, None)


def layers_case(
    shape: LayersShape,
    num_layers: int,
    rows: Sequence[int],
    nodes: Sequence[int],
    source_lengths: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    words: int = 1,
    num_padded: int = 0,
) -> LayersCase:
    """Make sources of `rows[a]` rows and `nodes[a]` nodes, the last of which are those of the rows.

    `num_padded` rows more belong to no source.
    """
    width, inner, heads = shape.width, shape.inner_width, shape.num_heads
    sizes = [(3 * width, width), *[(width, width)] * 3, (inner, width), (width, inner)]

    def new(*size: int) -> Tensor:
        return torch.randn(*size).to(device, dtype)

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=device)

    products: list = []
    for i in range(num_layers):
        layer = []
        for j, (num_columns, depth) in enumerate(sizes):
            has_norm = j in NORMED and (shape.is_pre_norm or i + j > 0)
            norm = (1 + new(depth) / 4, new(depth) / 4) if has_norm else (None, None)
            layer.append((*norm, new(num_columns, depth) * depth**-0.5, new(num_columns) / 4))
        products.append(layer)
    num, num_slots = len(rows), len(rows) + 1
    slot = 1 + torch.randperm(num)
    num_rows = sum(rows) + num_padded

    def lists(lengths: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        longest = max(lengths)
        total = num_slots * longest
        cell = torch.randperm(total).int().view(num_slots, longest)
        length = torch.zeros(num_slots, dtype=torch.int32)
        length[slot] = torch.tensor(lengths, dtype=torch.int32)
        return cell.to(device), length.to(device), total

    def pools(total: int) -> list[Tensor]:
        return [new(total, 2, heads, width // heads) for _ in range(num_layers)]

    offset, slots = ints([0, *accumulate(rows)]), slot.int().to(device)
    cell, length, total = lists(nodes)
    mask = torch.randint(-(2**63), 2**63 - 1, (*cell.shape, words)).to(device)
    entry = torch.randint(0, 64 * words, (num_rows,)).int().to(device)
    new_cell = torch.full((num_rows,), -1, dtype=torch.int32, device=device)
    for a, (begin, number) in enumerate(zip(accumulate([0, *rows]), rows, strict=False)):
        new_cell[begin : begin + number] = cell[slot[a], nodes[a] - number : nodes[a]]
    source_cell, source_length, source_total = lists(source_lengths)
    return LayersCase(
        shape,
        products,
        pools(total),
        pools(source_total),
        new(num_rows, width),
        Cells(offset, slots, cell, length, mask, entry),
        new_cell,
        Cells(offset, slots, source_cell, source_length),
    )
