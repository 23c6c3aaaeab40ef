"""Whether numbers come as often as they should."""

from __future__ import annotations

import math


def chi_square(counts: dict, expected: dict) -> float:
    """Standard deviations that the statistic lies above its mean; rare cells are one."""
    observed, probable = [0.0], [0.0]
    for cell, number in expected.items():
        if number < 5:
            observed[0] += counts.get(cell, 0)
            probable[0] += number
        else:
            observed.append(counts.get(cell, 0))
            probable.append(number)
    pairs = [(o, p) for o, p in zip(observed, probable, strict=True) if p > 0]
    statistic = sum((o - p) ** 2 / p for o, p in pairs)
    freedom = len(pairs) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)
