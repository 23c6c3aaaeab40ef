"""Phrases that outputs must contain, and dynamic beam allocation, in plain Python.

The allocation is written from Post and Vilar 2018 and Hu et al. 2019. It shares no code with the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest

import numpy as np

from support.search_models import EOS
from support.whole_search import Entry, Line, Rules, Search

Phrase = Sequence[int]
Spellings = tuple[Phrase, ...]  # any of which will do


def as_spellings(phrases: Sequence[Phrase]) -> list[tuple[Phrase, ...]]:
    """Phrases that are spelled in one way."""
    return [(tuple(phrase),) for phrase in phrases]


def occurrences(tokens: Phrase, phrase: Spellings) -> int:
    """At how many places of these tokens a spelling of a phrase ends."""
    tokens = tuple(tokens)
    ends = range(1, len(tokens) + 1)
    return sum(any(tokens[:i][-len(one) :] == tuple(one) for one in phrase) for i in ends)


def contains_all(tokens: Phrase, phrases: Sequence[Spellings]) -> bool:
    """Whether every phrase stands in these tokens as often as in the list."""
    return all(occurrences(tokens, phrase) >= phrases.count(phrase) for phrase in phrases)


def fewest_missing(tokens: Phrase, phrases: Sequence[Spellings]) -> int:
    """The fewest tokens behind which all phrases are there, by trying all of one, of two, …"""
    return _fewest_missing(tuple(tokens), tuple(phrases))


@cache
def _fewest_missing(tokens: Phrase, phrases: tuple[Spellings, ...]) -> int:
    alphabet = sorted({token for phrase in phrases for one in phrase for token in one})
    tried, length = [tokens], 0
    while not any(contains_all(one, phrases) for one in tried):
        tried = [(*one, token) for one in tried for token in alphabet]
        length += 1
    return length


def must_contain(
    row: list[float], tokens: list[int], forced: int, phrases: Sequence[Spellings], max_length: int
) -> list[float]:
    """The row of an oracle of processors: EOS behind all phrases alone, and all of them fit in time."""
    made = tokens[1:]
    if len(made) < forced or not phrases:
        return row
    room = max_length - (len(made) - forced) - 1  # tokens behind the next one, EOS included
    allowed = {v for v in range(len(row)) if fewest_missing((*made, v), phrases) < room} - {EOS}
    if contains_all(made, phrases):
        allowed.add(EOS)
    return [x if v in allowed else -math.inf for v, x in enumerate(row)]


class AllocatedSearch(Search):
    """A search that divides the places of its beam among banks: rows by how many tokens are missing."""

    def __init__(self, step: Callable, rules: Rules, phrases: Sequence[Spellings]) -> None:
        super().__init__(step, rules)
        self.phrases = phrases

    def left(self, beam: list[Entry], lines: list[Line], n: int) -> list[Line]:
        places = self.places_left(n) - sum(row.ended for row in beam)
        if places < 2 or not self.phrases:
            return lines
        goes_on = [[pair for pair in line if pair[0] not in self.rules.eos_ids] for line in lines]
        every = [
            (-np.float32(row.score + log_prob), parent, rank, token)
            for parent, (row, line) in enumerate(zip(beam, goes_on, strict=True))
            for rank, (token, log_prob) in enumerate(line)
        ]
        chosen = set(sorted(every)[:places])
        banks: dict[int, list] = {}
        for candidate in sorted(every):
            _, parent, rank, token = candidate
            before = fewest_missing(beam[parent].tokens, self.phrases)
            missing = fewest_missing([*beam[parent].tokens, token], self.phrases)
            if candidate in chosen or rank == 0 or missing < before:
                banks.setdefault(missing, []).append((parent, token))
        # the best of every bank, the fewest missing first, then the second best of every bank, …
        rounds = zip_longest(*[banks[missing] for missing in sorted(banks)])
        kept = [place for places in rounds for place in places if place is not None][:places]
        return [
            [pair for pair in line if pair[0] in self.rules.eos_ids or (parent, pair[0]) in kept]
            for parent, line in enumerate(lines)
        ]
