"""Phrases that outputs must contain, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, product

Phrase = Sequence[int]


def occurrences(tokens: Phrase, phrase: Phrase) -> int:
    """How often a phrase stands in these tokens. Occurrences may overlap."""
    tokens, phrase = tuple(tokens), tuple(phrase)
    return sum(tokens[i : i + len(phrase)] == phrase for i in range(len(tokens)))


def contains_all(tokens: Phrase, phrases: Sequence[Phrase]) -> bool:
    """Whether every phrase stands in these tokens as often as in the list."""
    return all(occurrences(tokens, phrase) >= phrases.count(phrase) for phrase in phrases)


def fewest_missing(tokens: Phrase, phrases: Sequence[Phrase], vocab_size: int) -> int:
    """The fewest tokens behind which all phrases are there, by trying all."""
    for length in count():
        if any(
            contains_all((*tokens, *more), phrases)
            for more in product(range(vocab_size), repeat=length)
        ):
            return length
    raise AssertionError
