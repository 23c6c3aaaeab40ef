"""`lexicon_automaton`: all sequences of words, by brute force."""

from __future__ import annotations

import itertools
import random

import pytest

from pybeam.automata import lexicon
from pybeam.automata.automaton import NEVER
from pybeam.automata.lexicon import lexicon_automaton
from support.random_automata import outputs

LENGTH, TOKENS = 5, (0, 2, 3)


def sentences(words, first=()) -> set[tuple[int, ...]]:
    """All sequences of words of at most so many tokens."""
    found, new = {()}, {tuple(one) for one in first} | {()}
    while new:
        found |= new
        new = {(*one, *word) for one in new for word in words} - found
        new = {one for one in new if len(one) <= LENGTH}
    return {one for one in found if len(one) <= LENGTH}


@pytest.mark.parametrize("seed", range(12))
def test_outputs_are_sequences_of_words(seed):
    draw = random.Random(seed)
    spelt = [tuple(one) for n in (1, 2, 3) for one in itertools.product(TOKENS, repeat=n)]
    words = draw.sample(spelt, draw.randint(1, 6))
    first = draw.sample(spelt, 2) if seed % 3 == 0 else []
    automaton = lexicon_automaton(words, first)
    found = {*outputs(automaton, TOKENS, LENGTH)}
    assert found == sentences(words, first)
    assert (automaton.needed < NEVER).all()
    assert {automaton.start, *automaton.target.tolist()} == {*range(automaton.num_states)}


def test_words_that_end_alike_share_states():
    words = [(i, 90, 91) for i in range(50)] + [(i, 92) for i in range(50)]
    automaton = lexicon_automaton(words)
    # between words, behind the first token, and behind 90
    assert automaton.num_states == 3
    assert automaton.score([7, 90, 91, 49, 92]) == 0
    assert automaton.walk([7, 91]).state == -1


def test_a_word_that_begins_another_goes_on_in_two_ways():
    automaton = lexicon_automaton([[1], [1, 2], [2, 3]])
    for valid in ([1, 2], [1, 2, 3], [1, 1, 2], [1, 2, 2, 3], []):
        assert automaton.score(valid) == 0
    for wrong in ([2], [1, 2, 2], [3]):
        assert automaton.score(wrong) == -float("inf")


def test_what_is_no_lexicon(monkeypatch):
    with pytest.raises(ValueError, match="must be spelt by tokens, but a spelling has none"):
        lexicon_automaton([[1], []])
    with pytest.raises(ValueError, match="`words` must have at least one word, but has none"):
        lexicon_automaton([])
    monkeypatch.setattr(lexicon, "MAX_EDGES", 3)
    with pytest.raises(ValueError, match="`words` must need at most 3 edges"):
        lexicon_automaton([[1], [2], [3], [4]])
