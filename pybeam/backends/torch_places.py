"""The operator `automaton_places` in plain torch, on any device and in float64 too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam import arguments
from pybeam.backends.torch_automata import INF, INT, NEEDED, OTHER, PoolArrays, edges_of

# more than any number of tokens that are missing
NEVER = torch.iinfo(INT).max


class PlacesInputs(NamedTuple):
    """R rows of A beams in states of a pool. Rows behind the last offset are padding."""

    state: Tensor  # [S, N] int32, of each node of the token trees
    child: Tensor  # [S, M] int32, numbers of the edges of a state; -1: none
    row_slot: Tensor  # [R] int32, and so are the next three
    node: Tensor
    entry: Tensor  # the place of a row in its beam
    position: Tensor
    offset: Tensor  # [A + 1] int32, rows of the a-th beam are offset[a] .. offset[a + 1]
    prefix_length: Tensor  # [S] int32
    score: Tensor  # [S, K] float32, of entries
    entries: Tensor  # [A + 1] int32, the same of entries, held hypotheses included
    width: Tensor  # [A] int32, places of the next beam, with those of held hypotheses


class Edges(NamedTuple):
    """Tokens that may follow rows, and how many are missing behind them."""

    token: Tensor  # [R, M] int32, of every edge of a row's state; -1: none
    missing: Tensor  # [R, M] int64, behind that token
    others: Tensor  # [R] int64, behind a token without an edge
    before: Tensor  # [R] int64, now

    @classmethod
    def of(cls, pool: PoolArrays, state: Tensor, number: Tensor) -> Edges:
        """Return the edges of states [R] with these numbers [R, M]; -1: none."""
        begin, end = edges_of(pool, state)
        edge = begin[:, None] + number
        is_edge = (number >= 0) & (edge < end[:, None])
        edge = torch.where(is_edge, edge, 0)
        other = torch.where(state < 0, -1, pool.number(state, OTHER))
        targets = pool.targets(edge, is_edge), other, state
        return cls(
            torch.where(is_edge, pool.token[edge], -1),
            *(torch.where(one < 0, NEVER, pool.number(one, NEEDED)).long() for one in targets),
        )

    def behind(self, row: Tensor, token: Tensor) -> Tensor:
        """Return how many tokens are missing if these rows [A, n] go on with these tokens [A, n]."""
        is_here = self.token[row] == token[..., None]  # [A, n, M]
        missing = torch.where(is_here, self.missing[row], 0).sum(-1)
        return torch.where(is_here.any(-1), missing, self.others[row])


def automaton_places(
    log_probs: Tensor,
    arrays: PoolArrays,
    inputs: PlacesInputs,
    token: Tensor,
    parent: Tensor,
    eos_ids: Sequence[int],
) -> Tensor:
    """Return log-probabilities [R, V] of continuations that get a place; C++ leaves them in `log_probs`.

    `pybeam.processors.must_contain` says which those are. The bank of a continuation is what `PoolArrays`
    says of its state: the fewest tokens to an end. A continuation without a place has -inf. A NaN and +inf
    stay. So do rows within a prefix, rows of states without edges, and beams with fewer than two open places.
    Rows of padding have any value.

    Args:
        log_probs: [R, V], float32, or float64 for the reference.
        arrays: a pool without failures, where every token leads somewhere.
        inputs: see there.
        token, parent: [A, C] int32, the best continuations of each beam but EOS, as `select` orders them, -1
            behind the last one. Parents are entries. Held hypotheses may be among them, and their tokens are
            not read. Those of rows are as many as there are open places, or all.
        eos_ids: 1 to 8 tokens that end an output, each of which competes.

    Raises:
        ValueError, RuntimeError: there are other EOS ids; and on a CPU: rows of `log_probs` overlap, offsets
            do not ascend from 0 to at most R, or rows of a beam have several slots.
    """
    num_rows, vocab_size = log_probs.shape
    arguments.eos_ids(eos_ids, vocab_size)
    _check_rows(log_probs, inputs)
    return divided(log_probs, arrays, inputs, token, parent, eos_ids) if num_rows else log_probs


def divided(
    log_probs: Tensor,
    arrays: PoolArrays,
    inputs: PlacesInputs,
    token: Tensor,
    parent: Tensor,
    eos_ids: Sequence[int],
) -> Tensor:
    """`automaton_places` of arguments that are right; nothing is read back from the device."""
    num_rows, vocab_size = log_probs.shape
    source = _sources_of(inputs.offset, num_rows)
    log_probs = log_probs.contiguous()
    places = inputs.width - (
        inputs.entries.diff() - inputs.offset.diff()
    )  # [A], less the held ones
    slot = inputs.row_slot.long()
    score = inputs.score[slot, inputs.entry.long()]
    number = inputs.child[slot]
    edges = Edges.of(arrays, inputs.state[slot, inputs.node.long()], number)
    row, token = _candidates(log_probs, inputs, source, places, edges, token, parent, eos_ids)
    index = row * vocab_size + token.clamp(min=0)
    gain = log_probs.view(-1)[index].masked_fill(token < 0, -INF)
    total = score[row] + gain
    missing = edges.behind(row, token)
    order = _order(token, -gain, row, -total, missing)
    order = order.gather(1, _in_rounds(missing.gather(1, order), total.gather(1, order) > -INF))
    is_there = total.gather(1, order) > -INF
    ends = _is_eos(token.gather(1, order), eos_ids)
    # what ends takes no place of what goes on
    goes_on = (is_there & ~ends).cumsum(1) <= places[:, None]
    is_kept = is_there & torch.where(ends, is_there.cumsum(1) <= places[:, None], goes_on)
    is_divided = (places > 1)[source] & (edges.token >= 0).any(1)
    is_divided &= inputs.position >= inputs.prefix_length[slot]
    log_probs.masked_fill_(is_divided[:, None] & (log_probs < INF), -INF)
    kept = torch.where(is_kept, gain.gather(1, order), -INF)
    # other rows have these values still
    log_probs.view(-1).scatter_reduce_(0, index.gather(1, order).flatten(), kept.flatten(), "amax")
    return log_probs


def _check_rows(log_probs: Tensor, inputs: PlacesInputs) -> None:
    num_rows, vocab_size = log_probs.shape
    source = _sources_of(inputs.offset, num_rows)
    if num_rows > 1 and log_probs.stride(0) < vocab_size:
        raise ValueError("rows of `log_probs` must not overlap; pass log_probs.contiguous()")
    offset, slot = inputs.offset, inputs.row_slot
    if offset[0] != 0 or (offset.diff() < 0).any() or offset[-1] > num_rows:
        raise RuntimeError("`offset` must ascend from 0 to the number of rows")
    begin = offset.long()[source]
    is_row = torch.arange(num_rows, device=offset.device) < offset[-1]
    if (is_row & (slot != slot[begin.clamp(max=max(num_rows - 1, 0))])).any():
        raise RuntimeError("`row_slot` must be the same in all rows of a beam")


def _sources_of(offset: Tensor, num_rows: int) -> Tensor:
    """The beam [R] of each row; that of padding is the last one."""
    number = torch.arange(num_rows, device=offset.device)
    return torch.searchsorted(offset[1:], number, right=True).clamp(max=len(offset) - 2)


def _candidates(
    log_probs: Tensor,
    inputs: PlacesInputs,
    source: Tensor,
    places: Tensor,
    edges: Edges,
    token: Tensor,
    parent: Tensor,
    eos_ids: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return rows and tokens [A, n] of continuations that compete, each once; a token of -1 is none.

    They are the best of all rows, the best of each row, and all that are nearer to the end of what is
    missing; and every end.
    """
    num_beams, room = len(places), inputs.score.shape[1]
    number = torch.arange(len(source), device=source.device)
    # a line and a column more are for padding and for held hypotheses
    is_row = number < inputs.offset[-1]
    row_of = torch.full((num_beams + 1, room + 1), -1, device=source.device)
    row_of[torch.where(is_row, source, num_beams), inputs.entry.long()] = number
    beam = torch.arange(num_beams, device=source.device)[:, None]
    best = row_of[beam, torch.where(parent < 0, room, parent).long()]  # [A, C]
    is_best = (best >= 0) & ((best >= 0).cumsum(1) <= places[:, None])
    token = torch.where(is_best, token, -1)
    rest = log_probs.masked_fill(log_probs.isnan(), -INF)
    for eos_id in eos_ids:
        rest[:, eos_id] = -INF
    first = rest.argmax(1, keepdim=True).to(INT)
    is_nearer = (edges.missing < edges.before[:, None]) & ~_is_eos(edges.token, eos_ids)
    nearer = torch.where(is_nearer, edges.token, -1)  # [R, M]
    first = first.masked_fill((nearer == first).any(1, keepdim=True), -1)
    of_row = torch.cat((nearer, first, *(torch.full_like(first, i) for i in eos_ids)), 1)
    rows = row_of[:-1, :-1]  # [A, K]
    own = of_row[rows.clamp(min=0)].masked_fill(rows[..., None] < 0, -1).flatten(1)
    rows = rows.repeat_interleave(of_row.shape[1], 1)
    is_twice = (own[..., None] == token[:, None]) & (rows[..., None] == best[:, None])
    own = own.masked_fill(is_twice.any(-1), -1)
    return torch.cat((best, rows), 1).clamp(min=0), torch.cat((token, own), 1)


def _is_eos(token: Tensor, eos_ids: Sequence[int]) -> Tensor:
    ends = torch.zeros_like(token, dtype=torch.bool)
    for eos_id in eos_ids:
        ends |= token == eos_id
    return ends


def _order(*keys: Tensor) -> Tensor:
    """Return the order [A, n] by the last key, ties by the one before, and so on; each ascends."""
    order = torch.arange(keys[0].shape[1], device=keys[0].device).expand(keys[0].shape)
    for key in keys:
        order = order.gather(1, key.gather(1, order).sort(stable=True).indices)
    return order


def _in_rounds(bank: Tensor, is_there: Tensor) -> Tensor:
    """Return the order [A, n] of the first of each bank, the second of each, …, and what is not there last.

    Banks ascend, and the best of a bank stands first in it.
    """
    place = torch.arange(bank.shape[1], device=bank.device).expand(bank.shape)
    is_first = torch.ones_like(is_there)
    is_first[:, 1:] = bank[:, 1:] != bank[:, :-1]
    turn = place - torch.where(is_first, place, 0).cummax(1).values
    return turn.masked_fill(~is_there, bank.shape[1]).sort(stable=True).indices
