"""The numbers of a decoding graph, and which tokens depend on which."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

# the node that stands for the source
SOURCE = -1


@dataclass(frozen=True)
class GraphData:
    """The tokens that Jacobi decoding found after each iteration.

    n is the number of generated tokens, EOS included; K the number of iterations.

    Attributes:
        tokens: [n] ids of the greedy output.
        labels: [n] the text shown for each token.
        guesses, guess_labels: [K, n] the tokens after each iteration, as ids and as text.
        probabilities: [K, n] the model's probability of each guess, given the tokens before it.
        is_correct: [K, n] whether the guess is the token of the output.
        first: [n] the iteration, counted from 0, from which on the token is correct.
        in_parallel: [n] whether the token became correct no later than the token before it. It then
            did not need that token.
        edges: pairs (i, j), i before j: token j became correct in an iteration that began with token i
            correct. Edges that follow from others are left out. i = -1 is the source.
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
        """All numbers as one JSON object with the attributes' names."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def dependencies(first: list[int]) -> list[tuple[int, int]]:
    """The pairs (i, j) with i before j and ``first[i] < first[j]`` that do not follow from other pairs.

    A token that is correct from the first iteration on depends on the source alone, which is -1.

    Args:
        first: for each token the iteration from which on it is correct.
    """
    edges = []
    for j, own in enumerate(first):
        # the largest `first` below our own among the tokens between i and j
        latest = -1
        for i in range(j - 1, -1, -1):
            # a smaller one follows from the edge to the token with that number
            if latest <= first[i] < own:
                edges.append((i, j))
                latest = first[i]
        if latest < 0:
            edges.append((SOURCE, j))
    return sorted(edges)
