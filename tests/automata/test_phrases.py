"""`phrases_automaton`: the outputs that contain every phrase, and the fewest tokens that are missing."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from pybeam.automata.phrases import phrases_automaton
from support.phrases import as_spellings, contains_all, fewest_missing

CASES = {
    "none": [],
    "one": as_spellings([(1, 2)]),
    "that overlap": as_spellings([(1, 2), (2, 3)]),
    "twice": as_spellings([(1, 1), (1, 1)]),
    "in another": as_spellings([(1,), (1,), (2, 1)]),
    "in itself": as_spellings([(1, 2, 1), (2, 1)]),
    "that begin alike": as_spellings([(1, 2), (1, 3), (1, 2, 3)]),
    "that is periodic, twice": as_spellings([(1, 2, 1), (1, 2, 1)]),
    "with two spellings": [((1, 2), (3,)), ((2,),)],
    "with a spelling in the other, twice": [((1, 2), (2,)), ((1, 2), (2,))],
}


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("phrases", CASES.values(), ids=CASES)
def test_outputs_are_those_that_contain_every_phrase(phrases):
    automaton = phrases_automaton(phrases)
    for length in range(6):
        for output in product(range(4), repeat=length):
            assert (automaton.score(output) == 0) == contains_all(output, phrases)
    assert automaton.start == 0


@pytest.mark.parametrize("seed", range(4))
def test_needed_is_the_fewest_tokens_that_are_missing(seed):
    rng = random.Random(seed)
    texts = [tuple(rng.choices(range(3), k=rng.randint(1, 3))) for _ in range(4)]
    phrases = [*as_spellings(texts[:2]), tuple(texts[2:])]
    automaton = phrases_automaton(phrases)
    for _ in range(20):
        tokens = rng.choices(range(4), k=rng.randint(0, 4))
        state = automaton.walk(tokens).state
        assert automaton.needed[state] == fewest_missing(tokens, phrases)


def test_states_follow_no_others():
    """Whoever is in a state knows all that matters, so it has one edge for each token that counts."""
    automaton = phrases_automaton(as_spellings([(5, 6), (9, 2, 4)]))
    # 6 nodes of the trie, and 4 sets of phrases
    assert automaton.num_states == 24
    assert automaton.max_children == 3
    assert automaton.shortest == 5
    assert not np.isfinite(automaton.final[:18]).any()


def test_too_many_phrases_are_refused():
    with pytest.raises(ValueError, match=r"at most 4,194,304 edges.*these 16 need .*ask for fewer"):
        phrases_automaton([((i, i + 1),) for i in range(0, 32, 2)])
    with pytest.raises(ValueError, match=r"these 2000 need more; ask for fewer"):
        phrases_automaton([((i,),) for i in range(2000)])
    with pytest.raises(ValueError, match=r"at most 7 edges.*these 2 need 24"):
        phrases_automaton([((1,),), ((2,),)], most=7)


def test_the_same_phrases_have_one_automaton():
    first = phrases_automaton([((71,),), ((72, 73),)])
    assert phrases_automaton([((72, 73),), ((71,),)]) is first
    assert phrases_automaton([((71,),), ((72, 74),)]) is not first
