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


def with_places(banks: dict[int, list], places: int, eos_ids: Sequence[int]) -> list:
    """The pairs (row, token) that get one of so many places. Those of a bank are given best first."""
    # the best of every bank, the fewest missing first, then the second best of every bank, …
    rounds = zip_longest(*[banks[missing] for missing in sorted(banks)])
    ranked = [place for one_round in rounds for place in one_round if place is not None]
    kept = [place for place in ranked[:places] if place[1] in eos_ids]
    return kept + [place for place in ranked if place[1] not in eos_ids][:places]


class AllocatedSearch(Search):
    """A search that divides the places of its beam among banks: rows by how many tokens are missing."""

    def __init__(self, step: Callable, rules: Rules, phrases: Sequence[Spellings]) -> None:
        super().__init__(step, rules)
        self.phrases = phrases

    def left(self, beam: list[Entry], lines: list[Line], n: int) -> list[Line]:
        places = self.places_left(n) - sum(row.ended for row in beam)
        if places < 2 or not self.phrases:
            return lines
        eos_ids = self.rules.eos_ids
        every = sorted(
            (-np.float32(row.score + log_prob), parent, rank, token)
            for parent, (row, line) in enumerate(zip(beam, lines, strict=True))
            for rank, (token, log_prob) in enumerate(line)
        )
        goes_on = [candidate for candidate in every if candidate[3] not in eos_ids]
        of_rows = [[one for one in goes_on if one[1] == parent] for parent in range(len(beam))]
        chosen = {*goes_on[:places], *(min(own, key=lambda one: one[2]) for own in of_rows if own)}
        banks: dict[int, list] = {}
        for candidate in every:
            _, parent, _, token = candidate
            ends = token in eos_ids
            before = fewest_missing(beam[parent].tokens, self.phrases)
            missing = 0 if ends else fewest_missing([*beam[parent].tokens, token], self.phrases)
            if candidate in chosen or missing < before or ends:
                banks.setdefault(missing, []).append((parent, token))
        kept = with_places(banks, places, eos_ids)
        return [
            [pair for pair in line if (parent, pair[0]) in kept]
            for parent, line in enumerate(lines)
        ]
