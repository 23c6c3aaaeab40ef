"""Stand-ins for the operators of a decoder in one launch, and a backend that has what it needs of a GPU's."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

import pybeam
from pybeam import backends
from pybeam.backends import torch_layers
from pybeam.backends.torch_layers import FUNCTIONS
from pybeam.contracts import Cells, NewNodes
from pybeam.models.transformer import cuda_operators, one_launch
from pybeam.models.transformer.norms import Norm
from support.decoder_layers import Selected, num_places

REFERENCE = backends.load("reference")
MOST_ROWS, LINES = 64, 8

ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=6),
    "variable": pybeam.variable_beam(3, relative_threshold=0.2, max_length=6),
    "optimal": pybeam.optimal_beam(3, max_length=6),
    "no early end": pybeam.fixed_beam(3, min_length=4, max_length=6),
    "sample": pybeam.sample(seed=3, max_length=6),
    "stochastic": pybeam.stochastic_beam(3, seed=3, max_length=6),
    "jacobi": pybeam.jacobi(length=4, max_length=6),
    "diverse": pybeam.diverse(pybeam.fixed_beam(4, max_length=6), 2, 0.5),
}

# nothing stands between their logits and `select`
CHOOSING = ("greedy", "variable", "optimal", "no early end")


def at(address: int, *shape: int) -> Tensor | None:
    """The float32 numbers at an address of this process."""
    if not address:
        return None
    numbers = (ctypes.c_float * math.prod(shape)).from_address(address)
    return torch.frombuffer(numbers, dtype=torch.float32).view(shape)


def layers_by_address(x, embedding, kept, seen, *given):
    """Do as the operator does, through the table alone."""
    table, places, _ = kept
    offset, slot, cell, num_cells, mask, entry, new_cell, source_cell, source_length = seen
    *norm, weight, bias = given[:4]
    selected, sizes = Selected(*given[4:18]), given[18:]
    num_pool_cells, inner, num_heads, activation, is_pre_norm = sizes[:5]
    skipped_id, embedding_scale, epsilon, scale = sizes[5:]
    if x is None:
        x, _ = embed_norm(*embedding, embedding_scale, skipped_id, [None, None])
    assert places.shape[1] == len(table) and bool((places == -1).all())
    cells = Cells(offset, slot, cell, num_cells, mask, entry)
    source_cells = Cells(offset, slot, source_cell, source_length)
    d = x.shape[1]
    columns = [(3 * d, d), (d, d), (d, d), (d, d), (inner, d), (d, inner)]
    # cells of sources are counted by nobody
    num_source_cells = 1 + int(source_cell.max())
    heads = num_heads, d // num_heads
    for line in table.tolist():
        parts = [line[4 * j : 4 * j + 4] for j in range(6)]
        own, source = (
            at(address, num, 2, *heads).unbind(1)
            for address, num in zip(line[24:], (num_pool_cells, num_source_cells), strict=True)
        )

        def multiplied(j: int, y: Tensor, parts=parts) -> Tensor:
            return F.linear(y, at(parts[j][2], *columns[j]), at(parts[j][3], columns[j][0]))

        def normed(j: int, x: Tensor, parts=parts) -> tuple[Tensor, Tensor]:
            weight, bias = (at(address, d) for address in parts[j][:2])
            y = x if weight is None else F.layer_norm(x, (d,), weight, bias, epsilon)
            return (x if is_pre_norm else y), y

        x, y = normed(0, x)
        query, key, value = multiplied(0, y).view(-1, 3, *heads).unbind(1)
        new = NewNodes(key, value, new_cell)
        y = REFERENCE.tree_attention(query, *own, cells, scale, None, new)
        x, y = normed(2, x + multiplied(1, y.flatten(1)))
        query = multiplied(2, y).view(-1, *heads)
        y = REFERENCE.tree_attention(query, *source, source_cells, scale)
        x, y = normed(4, x + multiplied(3, y.flatten(1)))
        x = x + multiplied(5, FUNCTIONS[activation](multiplied(4, y)))
    if weight is None:
        return [x]
    y = F.linear(x if norm[0] is None else F.layer_norm(x, (d,), *norm, epsilon), weight, bias)
    if selected.score is None:
        return [y]
    return list(REFERENCE.select(y[: int(offset[-1])], *selected[:3], selected.options))


def embed_norm(token, place, table, positions, scale, skipped_id, norms):
    num = len(positions) // 2 if skipped_id >= 0 else 0
    place = place + num * (token == skipped_id)
    x = torch_layers.embed(token, place, table, None, len(table), positions, scale)
    x = x if norms[0] is None else Norm(*norms[0])(x)
    return x, (x if norms[1] is None else Norm(*norms[1])(x))


class Operators:
    """Stand in for those of an extension with CUDA, and count the rows of launches."""

    def __init__(self, layers) -> None:
        self.num_rows: list[int] = []
        self.num_chosen = 0  # launches that have selected, too
        self._layers = layers

    def __call__(self, name: str):
        return getattr(self, name)

    def takes_decoder_layers(self, like, num_rows, *sizes) -> int:
        _, inner_width, _, self.num_logits = sizes
        return num_places(num_rows, like.shape[1], inner_width) if num_rows <= MOST_ROWS else 0

    def decoder_layers(self, states, embedding, *given) -> list[Tensor]:
        self.num_rows.append(len(embedding[0]))
        self.num_chosen += Selected(*given[6:20]).score is not None
        return self._layers(states, embedding, *given)


def installed(monkeypatch, layers) -> Operators:
    operators = Operators(layers)
    monkeypatch.setattr(one_launch, "IS_ON", True)
    monkeypatch.setattr(cuda_operators, "operator", operators)
    monkeypatch.setattr(cuda_operators, "has_operator", lambda *_: True)
    monkeypatch.setattr(cuda_operators, "takes_choice", lambda like, options: True)
    monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)
    return operators


# a GPU's backend has these, and one launch needs them
PARTS = {"few_rows": SimpleNamespace(takes_product=lambda *_: False), "embed_norm": embed_norm}


def on_a_gpu() -> SimpleNamespace:
    """The reference with what one launch needs of a GPU's backend."""
    return SimpleNamespace(**{**vars(REFERENCE), **PARTS})
