"""`Runs`: the edges of an automaton as a device has them, where the edges of a dense state are a run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pybeam.automata.automaton import INF, NEVER, NOWHERE, Automaton

# a state is dense that has an edge for one token of so many, from its first to its last one
SHARE = 2


class Runs(NamedTuple):
    """Edges whose tokens follow one another, without a gap, in every state that is dense and fails to none.

    A token in a gap has an edge that leads where its state leads others. A target of -1 has a weight of -inf,
    and so has one from which no output ends. ``Automaton.step`` says the same of both forms, but a kernel
    finds the edge of a token by its number, and reads the weights of a state as a row.
    """

    first: np.ndarray  # [F + 1] int32
    token: np.ndarray  # [E] int32
    target: np.ndarray  # [E] int32
    weight: np.ndarray  # [E] float32
    # [F] int32, the most tokens to an end behind an edge that leads somewhere
    most_needed: np.ndarray

    @classmethod
    def of(cls, automaton: Automaton) -> Runs:
        """Return the edges of an automaton in this form."""
        first = np.append(0, np.cumsum(widths(automaton))).astype(np.int32)
        token, target, weight = automaton.token, automaton.target, automaton.weight
        if first[-1] > automaton.num_edges:
            token, target, weight = _filled(automaton, first)
        needed = np.append(automaton.needed, NEVER)[target]
        is_dead = needed == NEVER
        needed[is_dead] = -1
        most_needed = np.full(automaton.num_states, -1, dtype=np.int32)
        has_edges = np.diff(first) > 0
        if has_edges.any():
            most_needed[has_edges] = np.maximum.reduceat(needed, first[:-1][has_edges])
        target, weight = np.where(is_dead, NOWHERE, target), np.where(is_dead, -INF, weight)
        return cls(first, token, target.astype(np.int32), weight.astype(np.float32), most_needed)


def _filled(automaton: Automaton, first: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens, targets and weights of edges [E] that are filled up to begin at first [F + 1]."""
    count, width = np.diff(automaton.first), np.diff(first)
    states = np.arange(automaton.num_states, dtype=np.int32)
    lowest = automaton.token[np.minimum(automaton.first[:-1], automaton.num_edges - 1)]
    owner, state = np.repeat(states, width), np.repeat(states, count)
    token = lowest[owner] + np.arange(len(owner), dtype=np.int32) - first[owner]
    target, weight = automaton.other[owner], automaton.other_weight[owner]
    number = np.arange(automaton.num_edges, dtype=np.int32) - automaton.first[state]
    number = np.where((width > count)[state], automaton.token - lowest[state], number)
    place = first[state] + number
    token[place], target[place] = automaton.token, automaton.target
    weight[place] = automaton.weight
    return token, target, weight


def widths(automaton: Automaton) -> np.ndarray:
    """[F] int64, the edges of every state of `Runs`."""
    count = np.diff(automaton.first).astype(np.int64)
    has_edges = count > 0
    begin, end = automaton.first[:-1][has_edges], automaton.first[1:][has_edges]
    span = np.zeros_like(count)
    span[has_edges] = automaton.token[end - 1].astype(np.int64) - automaton.token[begin] + 1
    is_filled = (automaton.failure == NOWHERE) & (SHARE * count >= span)
    return np.where(is_filled, span, count)
