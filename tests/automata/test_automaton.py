"""`Automaton`: arrays that are checked, and a walk that anyone can read."""

from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import pytest

from pybeam.automata.automaton import Automaton
from support.random_automata import KINDS, longest_of, outputs, random_automaton

INF = float("inf")


def back_off() -> Automaton:
    """A bigram model of tokens 5 and 6 by hand: state 0 forgets all, state 1 has seen 5."""
    return Automaton.build(
        [-1.0, -0.5],
        source=[0, 0, 1],
        token=[5, 6, 6],
        target=[1, 0, 0],
        weight=[-1.5, -2.5, -0.25],
        failure=[-1, 0],
        other=[0, -1],
        other_weight=[-9.0, -0.125],
        start=1,
    )


def test_a_walk_follows_edges_then_failures_then_others():
    automaton = back_off()
    assert automaton.step(1, 6) == (0, -0.25)
    assert automaton.step(1, 5) == (1, -0.125 - 1.5)
    assert automaton.step(1, 7) == (0, -0.125 - 9.0)
    assert automaton.score([6, 5]) == -0.25 - 1.5 - 0.5
    assert automaton.shortest == 0
    assert not automaton.is_sparse


def test_a_target_of_nowhere_forbids():
    automaton = Automaton.build([True], source=[0], token=[5], target=[-1], other=[0])
    assert automaton.score([3, 4]) == 0
    assert automaton.score([3, 5]) == -INF


def test_a_pickle_leaves_out_what_is_large_and_found_again():
    tokens = np.arange(3, 1003)
    automaton = Automaton.build([True] * 9, source=[0] * 1000, token=tokens, target=tokens % 9)
    found = automaton.longest, automaton.has_output(1, 9)
    sent = pickle.dumps(automaton)
    assert len(sent) < 1.2 * automaton.num_bytes
    again = pickle.loads(sent)
    assert again.needed.tolist() == automaton.needed.tolist()
    assert (again.longest, again.has_output(1, 9)) == found


def test_needed_counts_tokens_to_an_end():
    # 0 -> 1 -> 2, which is final; 3 leads nowhere
    automaton = Automaton.build(
        [False, False, True, False], source=[0, 1, 0], token=[3, 4, 5], target=[1, 2, 3]
    )
    assert automaton.needed.tolist() == [2, 1, 0, np.iinfo(np.int32).max]
    assert automaton.is_sparse
    assert automaton.max_children == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token": [5, 5, 6]}, "one edge with token 5"),
        ({"token": [-5, 5, 6]}, "`token` must be ids"),
        ({"target": [1, 7, 0]}, "`target` must be states"),
        ({"weight": [0, -INF, 0]}, "`weight` must be finite"),
        ({"failure": [-1, 1]}, "`failure` must be smaller"),
        ({"other": [0, 0]}, "`other` must be -1"),
        ({"final": [0, -INF]}, "able to end in every state"),
        ({"final": []}, "`source` must be states"),
        ({"source": [0, 0]}, "as many"),
        ({"other": [0, -1, 0]}, "`other` must have 2 numbers"),
        ({"start": 2}, "`start` must be a state"),
        ({"failure": None, "final": [0, -INF], "allows_cuts": True}, "able to end in every state"),
    ],
)
def test_arrays_are_checked(changes, message):
    given = {"final": [0.0, 0.0], "source": [0, 0, 1], "token": [5, 6, 6], "target": [1, 0, 0]}
    given |= {"failure": [-1, 0], "other": [0, -1]} | changes
    with pytest.raises(ValueError, match=message):
        Automaton.build(**given)


def test_arrays_are_checked_as_they_are():
    automaton = back_off()
    with pytest.raises(ValueError, match="`first` must ascend"):
        Automaton(**{**vars(automaton), "first": automaton.first[::-1].copy()})
    with pytest.raises(ValueError, match="`final` must be float32"):
        Automaton(**{**vars(automaton), "final": automaton.final.astype(np.float64)})


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_of_outputs(kind):
    tokens = range(3)
    for seed in range(8):
        automaton = random_automaton(seed, tokens, 4, kind)
        lengths = {len(output) for output in outputs(automaton, tokens, 6)}
        assert automaton.shortest == min(lengths)
        if kind == "sparse":
            assert automaton.longest == longest_of(automaton, tokens)
            for shortest, longest in product(range(5), range(7)):
                has_some = any(shortest <= length <= longest for length in lengths)
                assert automaton.has_output(shortest, longest) == has_some


def test_it_may_start_elsewhere():
    automaton = back_off()
    assert automaton.starting_at(1) is automaton
    elsewhere = automaton.starting_at(0)
    assert elsewhere is automaton.starting_at(0)
    assert elsewhere.score([6]) == -2.5 - 1.0
    assert automaton.score([6]) == -0.25 - 1.0
