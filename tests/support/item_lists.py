"""Items of small catalogues, and what a tree of them must hold, in plain Python."""

from __future__ import annotations

import random


def random_items(
    seed: int, num: int, tokens: range, lengths: range, *, repeats: int = 0
) -> list[list[int]]:
    """Draw items of these lengths and tokens, some of which occur again."""
    rng = random.Random(seed)
    items = [[rng.choice(tokens) for _ in range(rng.choice(lengths))] for _ in range(num)]
    items += rng.choices(items, k=repeats)
    rng.shuffle(items)
    return items


def beginnings(items: list[list[int]]) -> list[tuple[int, ...]]:
    """The nodes of their tree: all beginnings by length, then in lexical order; the empty one first."""
    found = {tuple(item[:n]) for item in items for n in range(len(item) + 1)}
    return sorted(found, key=lambda one: (len(one), one))
