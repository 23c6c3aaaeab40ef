"""The operators of catalogues in plain torch, on any device and in float64 too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from pybeam.backends.arrays import CatalogueArrays, SelectInputs
from pybeam.contracts import ColumnRules, ColumnTokens, Normalise, SelectOptions, Survivors

INF = float("inf")
INT = torch.int32
WORD = 32
# the node of every catalogue's tree that no token leads to
ROOT = 0

Child = Callable[[CatalogueArrays, Tensor, Tensor], Tensor]
Select = Callable[[Tensor, Tensor, Tensor, Tensor, SelectOptions], Survivors]


class RowPlaces(Protocol):
    """Where rows stand: the slot and the entry [R] of each."""

    @property
    def row_slot(self) -> Tensor: ...

    @property
    def entry(self) -> Tensor: ...


def edges_of(arrays: CatalogueArrays, node: Tensor) -> tuple[Tensor, Tensor]:
    """The edges of nodes [...], int64: the first one and the one behind the last. -1 has none."""
    last = arrays.first.numel() - 1
    begin = arrays.first[node.long().clamp(0, last)].long()
    end = arrays.first[(node.long() + 1).clamp(0, last)].long()
    return begin, torch.where(node < 0, begin, end)


def catalogue_walk(
    child: Child,
    arrays: CatalogueArrays,
    parent: Tensor,
    state: Tensor,
    row_slot: Tensor,
    node: Tensor,
    token: Tensor,
    num_generated: Tensor,
) -> Tensor:
    """Return where rows are in a catalogue's tree: nodes [R] int32, -1 outside.

    They are noted in `state` [S, N], by slot and node of the token trees, whose parents are `parent`
    [S, N]. A row goes on from where its parent is by its token [R]; one that has generated none is at the
    root. `child`, which backends give, does what `catalogue_child` does.
    """
    slot, own = row_slot.long(), node.long()
    before = state[slot, parent[slot, own].long().clamp(min=0)]
    here = torch.where(num_generated > 0, child(arrays, before, token), ROOT)
    state[slot, own] = here
    return here


def catalogue_child(arrays: CatalogueArrays, node: Tensor, token: Tensor) -> Tensor:
    """Return the nodes [R] int32 that tokens [R] lead to from nodes [R]; -1 where there is none."""
    low, high = edges_of(arrays, node)
    end, last = high, arrays.token.numel() - 1
    # the first edge whose token is not smaller lies from `low` to `high`
    for _ in range(int(last + 1).bit_length()):
        middle = (low + high) // 2
        is_smaller = arrays.token[middle.clamp(max=last)] < token
        is_open = low < high
        low = torch.where(is_open & is_smaller, middle + 1, low)
        high = torch.where(is_open & ~is_smaller, middle, high)
    is_there = (low < end) & (arrays.token[low.clamp(max=last)] == token)
    return torch.where(is_there, low + 1, -1).to(INT)


def catalogue_columns(
    arrays: CatalogueArrays, logits: Tensor, node: Tensor, line: Tensor, rules: ColumnRules
) -> Tensor:
    """Return log-probabilities [R, M + 1] of EOS and of the tokens that may follow nodes [R].

    A token's column is its edge, counted from the first edge of its node, behind that of EOS if
    `rules.eos_first`. Filters line[R] say what is allowed; the rest is -inf. A row with a NaN or +inf
    is NaN.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    begin, end = edges_of(arrays, node)
    num = rules.num_columns or max([1, *(end - begin).tolist()])
    edge = begin[:, None] + torch.arange(num, device=node.device)  # [R, M]
    is_edge = edge < end[:, None]
    edge = torch.where(is_edge, edge, 0)
    words = arrays.words.shape[1] // 2
    is_alive = is_edge & _bit(arrays.words, line[:, None], 0, edge + 1)
    is_end = (node >= 0) & _bit(arrays.words, line, words, node.clamp(min=0).long())
    value = logits.gather(1, arrays.token[edge].long()).to(dtype).masked_fill(~is_alive, -INF)
    eos = logits[:, rules.eos_id].to(dtype).masked_fill(~is_end, -INF)[:, None]
    out = torch.cat((eos, value) if rules.eos_first else (value, eos), 1)  # [R, M + 1]
    if rules.normalise == Normalise.NOTHING:
        return out
    return _less(out, logits.to(dtype) if rules.normalise == Normalise.VOCABULARY else out)


def _bit(words: Tensor, line: Tensor, offset: int, node: Tensor) -> Tensor:
    return (words[line.long(), offset + node // WORD] >> (node % WORD) & 1).bool()


def _less(out: Tensor, logits: Tensor) -> Tensor:
    """out - log(sum(exp(logits))), row by row; -inf stays."""
    peak = logits.amax(1, keepdim=True)
    # a row that allows nothing stays -inf
    floor = torch.where(peak == -INF, 0.0, peak)
    # one after another, so that columns without an edge change nothing
    log_sum = (logits - floor).exp().cumsum(1)[:, -1:].log()
    is_sound = (logits.isnan() | (logits == INF)).any(1, keepdim=True).logical_not()
    value = torch.where(is_sound, (out - floor) - log_sum, float("nan"))
    return torch.where(is_sound & (out == -INF), out, value)


def select_columns(
    select: Select,
    logits: Tensor,
    columns: ColumnTokens,
    inputs: SelectInputs,
    options: SelectOptions,
    slot: Tensor,
    rows: RowPlaces,
    is_alive: Tensor,
) -> Survivors:
    """`select` among columns: its survivors, with tokens in place of columns.

    Args:
        select: that of a backend.
        logits: [R, M + 1], those of columns.
        columns: which tokens they are.
        inputs, options: as for the vocabulary.
        slot: [A], the slots of the beams.
        rows: where they are.
        is_alive: [S, K], which entries of the beams are rows.
    """
    width, forced = logits.shape[1], options.forced
    eos, other = (0, width - 1) if columns.eos_first else (width - 1, 0)
    options = options._replace(eos_ids=(eos,))
    if forced is not None:
        options = options._replace(forced=torch.where(forced >= 0, other, -1).to(INT))
    chosen = select(logits, inputs.score, inputs.offset, inputs.width, options)
    if not columns.node.shape[0]:
        return chosen  # nothing moves
    # [A, 1], [A, C]
    slots, parent = slot.long()[:, None], chosen.parent.clamp(min=0).long()
    node_of = torch.zeros(is_alive.shape, dtype=INT, device=slot.device)
    node_of[rows.row_slot.long(), rows.entry.long()] = columns.node
    token = column_tokens(columns, node_of[slots, parent], chosen.token, width).to(INT)
    if forced is not None:
        token = torch.where(forced[:, None] >= 0, forced[:, None], token)
    return chosen._replace(token=torch.where(chosen.token < 0, -1, token))


def column_tokens(columns: ColumnTokens, node: Tensor, column: Tensor, width: int) -> Tensor:
    """Return the tokens [...] of these columns, of `width` in all, of rows at these nodes [...]."""
    eos_column = 0 if columns.eos_first else width - 1
    begin = columns.first[node.long().clamp(0, columns.first.numel() - 1)].long()
    edge = begin + column - int(columns.eos_first)
    token = columns.token[edge.clamp(0, columns.token.numel() - 1)]
    return torch.where(column == eos_column, columns.eos_id, token)
