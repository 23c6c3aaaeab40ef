"""Few combinations of options in which every two values of different options meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable


def random_combinations(
    options: dict[str, list], is_valid: Callable[[dict], bool], count: int, seed: int
) -> list[dict]:
    """Draw so many valid combinations at random."""
    rng, chosen = random.Random(seed), []
    while len(chosen) < count:
        drawn = {name: rng.choice(values) for name, values in options.items()}
        if is_valid(drawn):
            chosen.append(drawn)
    return chosen


def covering_combinations(
    options: dict[str, list], is_valid: Callable[[dict], bool], seed: int = 0
) -> list[dict]:
    """Find valid combinations that contain every pair of values that a thousand random ones contain."""
    pool = random_combinations(options, is_valid, 1000, seed)
    pairs = [
        {frozenset(pair) for pair in itertools.combinations(_places(options, one), 2)}
        for one in pool
    ]
    missing, chosen = set().union(*pairs), []
    while missing:
        place = max(range(len(pool)), key=lambda i: len(pairs[i] & missing))
        missing -= pairs[place]
        chosen.append(pool[place])
    return chosen


def _places(options: dict[str, list], combination: dict) -> list[tuple[str, int]]:
    return [(name, options[name].index(value)) for name, value in combination.items()]
