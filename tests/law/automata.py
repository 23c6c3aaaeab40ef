"""Automata of the law, and the texts of tokens for its language models."""

from __future__ import annotations

import math

from pybeam.automata.automaton import Automaton
from pybeam.automata.vocabulary import Vocabulary


def spelt(*texts: str | None) -> Vocabulary:
    tokens = tuple(text and text.encode() for text in texts)
    return Vocabulary(tokens, tokens)


# pairs of a 3 or 8 and any of some tokens, as many as fit
PAIRS = Automaton.build(
    [0.25, -math.inf],
    source=[0, 0, *[1] * 5],
    token=[3, 8, 3, 5, 6, 9, 10],
    target=[1, 1, *[0] * 5],
    weight=[0.5, -0.25, 0.0, 0.75, -0.5, 0.0, 0.125],
)
# anything but 3 or 8 twice in a row, where a 6 costs less behind them
NO_PAIRS = Automaton.build(
    [0.0, -0.5, -0.5],
    source=[0, 0, 0, 1, 2],
    token=[3, 6, 8, 3, 8],
    target=[1, 0, 2, -1, -1],
    weight=[0.0, -1.0, 0.0, 0.0, 0.0],
    failure=[-1, 0, 0],
    other=[0, -1, -1],
    other_weight=[0.0, 0.75, 0.75],
)
# one begins another, and one goes on as another begins
WORDS = {"by": [3], "buy": [3, 6, 5], "us": [8, 8], "is": [6], "so": [[5, 10], [9]]}
# texts of tokens, of which some spell the same
LETTERS = spelt(None, None, None, "a", None, "b", "ab", None, "c", "é", "bc")
# words of a language model as tokens, and tokens that go on with words, end some, or are no text
NAMES = spelt(None, None, None, "the", None, "old", "king", None, "reads", "é")
SPELLINGS = spelt(None, None, None, " the", "é", "re", "ads", None, " ", "king ", " old\nk")
