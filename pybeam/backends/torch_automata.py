"""The operators of automata in plain torch, on any device and in float64 too.

Automata of several requests lie in one pool, `pybeam.processors.automaton_pool`: their states and edges are
numbered through, so rows of different automata share one call.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

INF = float("inf")
INT = torch.int32
NOWHERE = -1
# columns of `Automata.state`
FIRST, FAILURE, OTHER, OTHER_WEIGHT, FINAL, NEEDED = range(6)
# lines of `Automata.edge`
TOKEN, TARGET, WEIGHT = range(3)


class Automata(NamedTuple):
    """A pool of automata; `pybeam.automata.Automaton` says what each number means.

    The edges of state s lie from ``state[s, FIRST]`` to ``state[s + 1, FIRST]``, the second exclusive; a line
    without a state follows the last state of every automaton.
    """

    state: Tensor  # [F, 6] int32; weights are bits of float32
    edge: Tensor  # [3, E] int32; weights are bits of float32

    def number(self, state: Tensor, column: int) -> Tensor:
        """A column of these states, int64; any number for -1."""
        return self.state[state.long().clamp(min=0), column].long()

    def weight(self, state: Tensor, column: int) -> Tensor:
        """A column of these states, float32; any number for -1."""
        return self.state[state.long().clamp(min=0), column].view(torch.float32)

    def edges(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The first edge of states, and the one behind the last, int64. -1 has none."""
        begin = self.number(state, FIRST)
        return begin, torch.where(state < 0, begin, self.number(state + 1, FIRST))


def automaton_walk(
    automata: Automata,
    parent: Tensor,
    state: Tensor,
    row_slot: Tensor,
    node: Tensor,
    token: Tensor,
    num_generated: Tensor,
    root: Tensor,
) -> Tensor:
    """Return the states [R] int32 of rows, -1 where a token was forbidden.

    They are noted in `state` [S, N], by slot and node of the token trees, whose parents are `parent`
    [S, N]. A row goes on from the state of its parent by its token [R]; one that has generated none is in the
    state root[R]. So is every row with root 0, the state that allows everything.
    """
    slot, own = row_slot.long(), node.long()
    before = state[slot, parent[slot, own].long().clamp(min=0)]
    moves = (num_generated > 0) & (root > 0)
    here = torch.where(moves, before, NOWHERE)
    here = torch.where(moves, automaton_step(automata, here, token)[0], root)
    state[slot, own] = here
    return here


def automaton_step(automata: Automata, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states [R] int32 that tokens [R] lead to from states [R], and their weights [R] float32.

    Tokens that are forbidden lead to -1, and have any weight.
    """
    out, weight = torch.full_like(state, NOWHERE), torch.zeros_like(state, dtype=torch.float32)
    while bool((state >= 0).any()):
        edge, is_there = _edge_of(automata, state, token)
        failure = automata.number(state, FAILURE).to(INT)
        target = torch.where(is_there, automata.edge[TARGET][edge], automata.state[:, OTHER][state])
        is_here = state >= 0
        out = torch.where(is_here & (is_there | (failure < 0)), target, out)
        own = automata.edge[WEIGHT][edge].view(torch.float32)
        added = torch.where(is_there, own, automata.weight(state, OTHER_WEIGHT))
        weight = torch.where(is_here, weight + added, weight)
        state = torch.where(is_here & ~is_there, failure, NOWHERE)
    return out, weight


def _edge_of(automata: Automata, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges [R] with these tokens, and whether they are there."""
    low, end = automata.edges(state)
    high, last = end, automata.edge.shape[1] - 1
    of_edge = automata.edge[TOKEN]
    for _ in range(int(last + 1).bit_length()):
        middle = (low + high) // 2
        is_smaller = of_edge[middle.clamp(max=last)] < token
        is_open = low < high
        low = torch.where(is_open & is_smaller, middle + 1, low)
        high = torch.where(is_open & ~is_smaller, middle, high)
    edge = low.clamp(max=last)
    return edge, (low < end) & (of_edge[edge] == token)


def automaton_logits(
    automata: Automata, logits: Tensor, state: Tensor, room: Tensor, eos_ids: tuple[int, ...]
) -> Tensor:
    """Return logits [R, V] of what may follow states [R], with weights added, and -inf elsewhere.

    A token is allowed if its target can end within room[R] tokens, EOS included. EOS is allowed in states
    that may end.
    """
    num_rows, vocab_size = logits.shape
    # a column more is for edges that are not there
    out = logits.new_full((num_rows, vocab_size + 1), -INF)
    is_open = torch.ones_like(out, dtype=torch.bool)
    added = torch.zeros_like(room, dtype=torch.float32)
    here = state
    while bool((here >= 0).any()):
        begin, end = automata.edges(here)
        edge = begin[:, None] + torch.arange(int((end - begin).max()), device=begin.device)
        is_edge = edge < end[:, None]
        edge = torch.where(is_edge, edge, 0)
        token = torch.where(is_edge, automata.edge[TOKEN][edge], vocab_size).long()
        fits = _fits(automata, automata.edge[TARGET][edge], room[:, None])
        weight = added[:, None] + automata.edge[WEIGHT][edge].view(torch.float32)
        value = logits.gather(1, token.clamp(max=vocab_size - 1)) + weight
        value = torch.where(fits, value, -INF)
        out.scatter_(1, token, torch.where(is_open.gather(1, token), value, out.gather(1, token)))
        is_open.scatter_(1, token, False)
        failure = automata.number(here, FAILURE).to(INT)
        weight = added + automata.weight(here, OTHER_WEIGHT)
        other = automata.number(here, OTHER)
        leads_on = (here >= 0) & (failure < 0) & _fits(automata, other, room)
        takes_others = is_open[:, :vocab_size] & leads_on[:, None]
        own = out[:, :vocab_size]
        own.copy_(torch.where(takes_others, logits + weight[:, None], own))
        here, added = torch.where(here >= 0, failure, NOWHERE), weight
    final = torch.where(state >= 0, automata.weight(state, FINAL), -INF)
    for eos_id in eos_ids:
        out[:, eos_id] = logits[:, eos_id] + final
    return out[:, :vocab_size]


def _fits(automata: Automata, target: Tensor, room: Tensor) -> Tensor:
    """Whether outputs may go on to these states, and end in time."""
    return (target >= 0) & (automata.number(target, NEEDED) < room)
