"""An automaton of sequences: their tree, each node of which is a state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pybeam.automata.automaton import INF, NOWHERE, Automaton


def sequences_automaton(sequences: Sequence[Sequence[int]]) -> Automaton:
    """Build the automaton whose valid outputs are these sequences, at least one and none of them empty.

    States are numbered by depth and, within it, in lexical order. Edge e leads to state e + 1.
    """
    longest = max(map(len, sequences))
    padded = np.full((len(sequences), longest), NOWHERE, dtype=np.int32)
    for line, sequence in zip(padded, sequences, strict=True):
        line[: len(sequence)] = sequence
    padded = np.unique(padded, axis=0)  # sorted; -1 comes first
    state = np.zeros(len(padded), dtype=np.int32)  # each sequence's state at the present depth
    differs = np.zeros(len(padded), dtype=bool)  # from the one before
    differs[0] = True
    sources, tokens = [], []
    num_states = 1
    for depth in range(longest):
        token = padded[:, depth]
        differs[1:] |= token[1:] != token[:-1]
        has_token = token != NOWHERE
        is_new = differs & has_token
        sources.append(state[is_new])
        tokens.append(token[is_new])
        state = np.where(has_token, num_states - 1 + np.cumsum(is_new), state)
        num_states += int(is_new.sum())
    final = np.full(num_states, -INF)
    final[state] = 0
    source, token = np.concatenate(sources), np.concatenate(tokens)
    return Automaton.build(final, source=source, token=token, target=np.arange(1, num_states))
