"""Random layers of a decoder with rows in the middle of hypotheses, and their states in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.torch_layers import FUNCTIONS, Activation
from pybeam.contracts import Cells, SelectOptions

HEAD_SIZE = 64
# the products of a layer, and which have a norm
QKV, OWN_OUT, QUERY, CROSS_OUT, INNER, INNER_OUT = range(6)
NORMED = (QKV, QUERY, INNER)


@dataclass(frozen=True)
class LayersShape:
    """Sizes that all layers share."""

    width: int
    inner_width: int
    activation: int = Activation.RELU
    is_pre_norm: bool = True
    epsilon: float = 1e-5
    scale: float = 1 / math.sqrt(HEAD_SIZE)

    @property
    def num_heads(self) -> int:
        return self.width // HEAD_SIZE


@dataclass
class LayersCase:
    """Layers, and rows of sources that have so many nodes, those of the rows included."""

    shape: LayersShape
    products: list[list[tuple[Tensor | None, ...]]]  # [layers][6]: scale, shift, W, b
    own_pools: list[Tensor]  # [cells, 2, d]
    source_pools: list[Tensor]
    states: Tensor | None  # [R, d]; None: embeddings
    embedding: tuple[Tensor, Tensor, Tensor, Tensor]  # tokens and places [R], and both tables
    cells: Cells
    new_cell: Tensor
    source_cells: Cells
    # scale, shift, W and b of an output layer and the norm before
    output: tuple[Tensor | None, ...] = (None,) * 4
    skipped_id: int = -1
    embedding_scale: float = 1.0
    places: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Rows, padding included."""
        return len(self.embedding[0])

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding[2].dtype

    def begun(self) -> Tensor:
        """States [R, d] before the first layer."""
        if self.states is not None:
            return self.states.float()
        token, place, table, positions = self.embedding
        place = place + len(positions) // 2 * (token == self.skipped_id)
        # a line that there is not is 0
        parts = []
        for index, lines in ((token, table), (place, positions)):
            is_there = (0 <= index) & (index < len(lines))
            padded = torch.cat((lines.float(), torch.zeros(1, lines.shape[1])))
            parts.append(padded[torch.where(is_there, index, len(lines)).long()])
        return (self.embedding_scale * parts[0] + parts[1]).to(self.dtype).float()

    @cached_property
    def addresses(self) -> Tensor:
        """The table that the launch reads."""
        lines = [
            [0 if part is None else part.data_ptr() for parts in layer for part in parts]
            + [own.data_ptr(), source.data_ptr()]
            for layer, own, source in zip(
                self.products, self.own_pools, self.source_pools, strict=True
            )
        ]
        return torch.tensor(lines, dtype=torch.int64, device=self.embedding[0].device)

    def expected(self) -> tuple[Tensor, list[Tensor]]:
        """States [R, d] or logits, and the pools, rounded where a kernel for each part rounds."""
        x, dtype = self.begun(), self.dtype
        pools = [pool.clone() for pool in self.own_pools]
        num_rows = int(self.cells.offset[-1])

        def rounded(y: Tensor) -> Tensor:
            return y.to(dtype).float()

        def normed(x: Tensor, parts: Sequence) -> tuple[Tensor, Tensor]:
            scale, shift = parts[:2]
            if scale is None:
                return x, x
            norm = scale.float(), shift.float(), self.shape.epsilon
            y = rounded(F.layer_norm(x, x.shape[1:], *norm))
            return (x if self.shape.is_pre_norm else y), y

        def linear(x: Tensor, parts: Sequence) -> Tensor:
            weight, bias = (None if part is None else part.float() for part in parts[2:])
            return F.linear(x, weight, bias)

        for products, own, source in zip(self.products, pools, self.source_pools, strict=True):
            x, y = normed(x, products[QKV])
            qkv = rounded(linear(y, products[QKV])).view(len(x), 3, -1)
            for row in range(num_rows):
                if self.new_cell[row] >= 0:
                    own[self.new_cell[row]] = qkv[row, 1:].to(dtype)
            y = rounded(self._attended(qkv[:, 0], own, self.cells))
            x = rounded(x + linear(y, products[OWN_OUT]))
            x, y = normed(x, products[QUERY])
            query = rounded(linear(y, products[QUERY]))
            y = rounded(self._attended(query, source, self.source_cells))
            x = rounded(x + linear(y, products[CROSS_OUT]))
            x, y = normed(x, products[INNER])
            y = rounded(FUNCTIONS[self.shape.activation](linear(y, products[INNER])))
            x = rounded(x + linear(y, products[INNER_OUT]))
        if self.output[2] is not None:
            x = linear(normed(x, self.output)[1], self.output)
        return x.to(dtype)[:num_rows], pools

    def _attended(self, query: Tensor, pool: Tensor, cells: Cells) -> Tensor:
        out = torch.zeros_like(query)
        offset, slot = cells.offset.tolist(), cells.slot.tolist()
        for a, s in enumerate(slot):
            own = cells.cell[s, : int(cells.num_cells[s])].long()
            key, value = pool[own].float().view(len(own), 2, -1, HEAD_SIZE).unbind(1)
            for row in range(offset[a], offset[a + 1]):
                weight = torch.einsum("hd,nhd->hn", query[row].view(-1, HEAD_SIZE), key)
                if cells.mask is not None:
                    entry = int(cells.entry[row])
                    word = cells.mask[s, : len(own), entry // 64]
                    seen = (word >> entry % 64) & 1
                    weight[:, seen == 0] = -math.inf
                share = torch.softmax(weight * self.shape.scale, 1).nan_to_num(0.0)
                out[row] = torch.einsum("hn,nhd->hd", share, value).flatten()
        return out


def layers_case(
    shape: LayersShape,
    num_layers: int,
    rows: Sequence[int],
    nodes: Sequence[int],
    source_lengths: Sequence[int],
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    words: int = 1,
    num_padded: int = 0,
    num_logits: int = 0,
    num_tokens: int = 0,
) -> LayersCase:
    """Make sources of `rows[a]` rows and `nodes[a]` nodes, the last of which are those of the rows.

    `num_padded` rows more belong to no source. With `num_logits` there is an output layer with a norm,
    with `num_tokens` rows have tokens in place of states.
    """
    width, inner = shape.width, shape.inner_width
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
    output: tuple = (None,) * 4
    if num_logits:
        norm = 1 + new(width) / 4, new(width) / 4
        output = (*norm, new(num_logits, width) * width**-0.5, new(num_logits) / 4)
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
        return [new(total, 2, width) for _ in range(num_layers)]

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
        None if num_tokens else new(num_rows, width),
        (
            torch.randint(0, max(num_tokens, 1), (num_rows,)).int().to(device),
            torch.randint(0, 8, (num_rows,)).int().to(device),
            new(max(num_tokens, 1), width),
            new(8, width),
        ),
        Cells(offset, slots, cell, length, mask, entry),
        new_cell,
        Cells(offset, slots, source_cell, source_length),
        output,
    )


class Selected(NamedTuple):
    """What `select` is given for the rows of a case, beside logits."""

    score: Tensor | None = None
    offset: Tensor | None = None
    width: Tensor | None = None
    is_ended: Tensor | None = None
    max_candidates: Tensor | None = None
    margin: Tensor | None = None
    local_margin: Tensor | None = None
    best_finished: Tensor | None = None
    forced: Tensor | None = None
    ban_eos: Tensor | None = None
    eos_ids: tuple[int, ...] = (2,)
    finishing: int = 0
    capacity: int = 0
    normalise: bool = True

    @property
    def options(self) -> SelectOptions:
        eos_ids, finishing, capacity, normalise = self[10:]
        return SelectOptions(capacity, eos_ids, finishing, normalise, *self[3:10])


NOTHING = Selected()


def num_places(num_rows: int, width: int, inner_width: int) -> int:
    """Numbers that the blocks of a launch leave for one another in a layer; half of the places is empty."""
    chunk = next(chunk for chunk in (256, 512, 1024) if width <= chunk)
    chunks = -(-inner_width // chunk)
    # blocks that share the last product leave sums in float32
    sums = 2 * chunks * width if chunks > 1 else 0
    return 2 * num_rows * (9 * width + inner_width + sums)


def given(case: LayersCase, selected: Selected = NOTHING) -> tuple:
    """The arguments of the operator. Launches of a case share their places."""
    shape, cells, source = case.shape, case.cells, case.source_cells
    num_rows = -(-case.num_rows // 8) * 8
    if num_rows not in case.places:
        # a place that is not there has all bits set
        size = 2, len(case.products), num_places(num_rows, shape.width, shape.inner_width)
        device = case.embedding[0].device
        places = torch.full(size, -1, dtype=torch.int16, device=device)
        case.places[num_rows] = places, torch.zeros(3, dtype=torch.int32, device=device)
    sizes = len(case.own_pools[0]), shape.inner_width, shape.num_heads, shape.activation
    return (
        *(case.states, case.embedding, (case.addresses, *case.places[num_rows])),
        (*cells[:6], case.new_cell, *source[2:4]),
        *(*case.output, *selected, *sizes, shape.is_pre_norm),
        *(case.skipped_id, case.embedding_scale, shape.epsilon, shape.scale),
    )
