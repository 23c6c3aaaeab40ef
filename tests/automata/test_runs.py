"""`Runs`: the same steps as those of the automaton, with edges whose tokens follow one another."""

from __future__ import annotations

import numpy as np
import pytest

from pybeam.automata.automaton import NEVER, NOWHERE, Automaton
from pybeam.automata.runs import Runs, widths
from support.random_automata import KINDS, random_automaton

INF = float("inf")
TOKENS = range(3, 15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_steps_are_those_of_the_automaton(seed, kind):
    automaton = random_automaton(seed, TOKENS, 6, kind)
    runs = Runs.of(automaton)
    assert np.diff(runs.first).tolist() == widths(automaton).tolist()
    num_filled = 0
    for state in range(automaton.num_states):
        edges = slice(*runs.first[state : state + 2])
        own = set(automaton.token[slice(*automaton.first[state : state + 2])].tolist())
        tokens = runs.token[edges].tolist()
        assert tokens == sorted(own.union(tokens))
        steps = [automaton.step(state, token) for token in tokens]
        needed = [automaton.needed[target] if target >= 0 else NEVER for target, _ in steps]
        assert runs.target[edges].tolist() == [
            NOWHERE if n == NEVER else step.state for n, step in zip(needed, steps, strict=True)
        ]
        assert runs.weight[edges].tolist() == [
            -INF if n == NEVER else step.weight for n, step in zip(needed, steps, strict=True)
        ]
        assert runs.most_needed[state] == max((n for n in needed if n < NEVER), default=-1)
        if own < set(tokens):
            num_filled += 1
            assert automaton.failure[state] == NOWHERE and 2 * len(own) >= len(tokens)
            assert tokens == list(range(min(own), max(own) + 1))
    assert num_filled or kind == "failures"


def test_a_state_that_has_few_edges_or_fails_stays_as_it_is():
    # state 0 has half of the tokens from 4 to 7, state 1 fewer, and state 2 fails
    automaton = Automaton.build(
        [0.0, 0.0, 0.0],
        source=[0, 0, 1, 1, 2, 2],
        token=[4, 7, 4, 9, 4, 6],
        target=[1, 2, 0, 0, 0, 0],
        failure=[-1, -1, 0],
        other=[2, 1, -1],
        other_weight=[-0.5, 0.0, 0.0],
    )
    runs = Runs.of(automaton)
    assert runs.first.tolist() == [0, 4, 6, 8]
    assert runs.token.tolist() == [4, 5, 6, 7, 4, 9, 4, 6]
    assert runs.target.tolist() == [1, 2, 2, 2, 0, 0, 0, 0]
    assert runs.weight.tolist() == [0, -0.5, -0.5, 0, 0, 0, 0, 0]


def test_states_without_edges():
    runs = Runs.of(Automaton.build([True, False], source=[0], token=[3], target=[1]))
    assert runs.first.tolist() == [0, 1, 1]
    # no output ends behind the edge
    assert runs.target.tolist() == [NOWHERE] and runs.most_needed.tolist() == [-1, -1]
