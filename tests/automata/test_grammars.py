"""A grammar over tokens: masks have the tokens by which a step leads somewhere."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pybeam.automata import grammars
from pybeam.automata.grammars import NOWHERE, Grammar, GrammarError, Part
from pybeam.automata.vocabulary import Vocabulary

pytest.importorskip("llguidance")

# control tokens, two tokens of one text, a part of a character, and a byte that no text has
TOKENS = (None, b"a", b" b", b"b", None, b"ab", b"ab", b"\xc3", b"\xa9", b"\xff", b" ")
# spaces are dropped where a text begins
OPENING = (None, b"a", b"b", b"b", None, b"ab", b"ab", b"\xc3", b"\xa9", b"\xff", b"")
VOCABULARIES = {
    "plain": Vocabulary(TOKENS, TOKENS),
    "dropped": Vocabulary(TOKENS, OPENING),
    "skipped": Vocabulary(TOKENS, OPENING, skips=True),
}
NESTED = 'start: "é" | "a" start " "? "b"'


def bits(masks, num):
    return np.unpackbits(masks.allowed, axis=1, bitorder="little", count=num).astype(bool)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_masks_are_where_steps_lead(name):
    vocabulary = VOCABULARIES[name]
    grammar, draw = Grammar.of(NESTED, vocabulary), random.Random(3)
    states = [grammar.start()]
    for _ in range(200):
        found = grammar.step(draw.choice(states), draw.randrange(len(TOKENS)))
        if found.matcher is not None:
            states.append(found)
    masks = grammar.masks(states)
    for state, allowed in zip(states, bits(masks, len(TOKENS)), strict=True):
        leads = [grammar.step(state, token).matcher is not None for token in range(len(TOKENS))]
        assert allowed.tolist() == leads
    assert masks.may_end.any() and not masks.may_end.all()
    assert len(states) > 10


def test_the_texts_of_outputs_are_those_of_the_vocabulary():
    vocabulary = VOCABULARIES["skipped"]
    grammar = Grammar.of('start: "b b"', vocabulary)
    for tokens, ends in (([2, 2], True), ([10, 2, 2], True), ([3, 10, 3], True), ([2, 3], False)):
        state = grammar.start()
        for token in tokens:
            state = grammar.step(state, token)
        ended = state.matcher is not None and bool(grammar.masks([state]).may_end[0])
        assert ended == ends
        assert (vocabulary.text(tokens) == b"b b") == ends


def test_one_token_may_add_nothing():
    """With any number of them, a search would find many spellings of one text."""
    grammar = Grammar.of('start: "ab"', VOCABULARIES["skipped"])
    state = grammar.step(grammar.start(), 10)
    assert state.part == Part.SKIPPED
    assert grammar.step(state, 10) == NOWHERE
    assert grammar.step(state, 5).matcher is not None


def test_nowhere_leads_nowhere():
    grammar = Grammar.of('start: "a"', VOCABULARIES["plain"])
    for state in (grammar.step(grammar.start(), 3), grammar.step(grammar.start(), 99)):
        assert state == NOWHERE and grammar.step(state, 1) == NOWHERE
    masks = grammar.masks([NOWHERE])
    assert not masks.allowed.any() and not masks.may_end.any()


def test_the_last_grammars_are_kept(monkeypatch):
    monkeypatch.setattr(grammars, "MOST_KEPT", 2)
    vocabulary = Vocabulary(TOKENS, TOKENS)
    texts = [f'start: "{"a" * num}"' for num in range(1, 4)]
    first = Grammar.of(texts[0], vocabulary)
    assert Grammar.of(texts[0], vocabulary) is first
    Grammar.of(texts[1], vocabulary)
    assert Grammar.is_kept(texts[0], vocabulary)
    Grammar.of(texts[2], vocabulary)
    assert not Grammar.is_kept(texts[0], vocabulary)


def test_a_grammar_that_was_given_up_is_made_anew(monkeypatch):
    monkeypatch.setattr(grammars, "MAX_LEXER_STATES", 40)
    vocabulary = Vocabulary(TOKENS, OPENING, skips=True)
    text = "start: /(.*[ab].{30})*c/"
    spent = Grammar.of(text, vocabulary)
    draw, state = random.Random(0), spent.start()
    with pytest.raises(GrammarError, match="too complex"):
        for _ in range(100):
            spent.masks([state])
            state = spent.step(state, draw.choice([1, 2, 3, 5]))
    assert spent.is_spent
    assert Grammar.of(text, vocabulary) is not spent
