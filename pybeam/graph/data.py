"""The numbers of a decoding graph."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

# the node that stands for the source
SOURCE = -1


@dataclass(frozen=True)
class GraphData:
    """One output, as `jacobi` finds it iteration by iteration.

    Lists of K iterations hold lists of the n generated tokens, EOS included.

    Attributes:
        tokens: [n] ids of the greedy output.
        labels: [n] what a person reads in their place.
        guesses, guess_labels: [K, n] the tokens after each iteration.
        probabilities: [K, n] of those tokens, given the tokens of the iteration before.
        is_correct: [K, n] whether the token is the output's.
        first: [n] the iteration, from 0, from which on the token is the output's.
        in_parallel: [n] whether it was so no later than the token before it, which therefore it did
            not need.
        edges: pairs (i, j): token j became right in an iteration that began with token i right,
            without those that follow from others; i = -1 is the source.
    """

    tokens: list[int]
    labels: list[str]
    guesses: list[list[int]]
    guess_labels: list[list[str]]
    probabilities: list[list[float]]
    is_correct: list[list[bool]]
    first: list[int]
    in_parallel: list[bool]
    edges: list[tuple[int, int]]

    @property
    def num_iterations(self) -> int:
        return len(self.guesses)

    def to_json(self) -> str:
        """All of it, by the names of the attributes."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def dependencies(first: list[int]) -> list[tuple[int, int]]:
    """Edges (i, j), i before j, where ``first[i] < first[j]``, none of which follows from others.

    A token that was right at once depends on the source alone, -1.
    """
    edges = []
    for j, own in enumerate(first):
        latest = -1  # the largest `first` below our own that has been seen on the way back
        for i in range(j - 1, -1, -1):
            # one that a later token stands on, which is itself needed, follows from that
            if latest <= first[i] < own:
                edges.append((i, j))
                latest = first[i]
        if latest < 0:
            edges.append((SOURCE, j))
    return sorted(edges)
