"""What one step costs at a length: Figure 2 of Yang et al. 2020, a token tree beside padded caches.

Searches that cannot end before T tokens, nor go on after them, are timed for several T; what two of
them differ by, divided by the tokens between, is the mean time of a step there. Nothing looks into
the loop, so a system may run as it likes.
"""

from __future__ import annotations

import itertools
import time

from benchmarks.e2e.pair import GENERATE, Pair
from benchmarks.e2e.task import Task


def tasks(
    pair: Pair, sources: list[list[int]], width: int, n: int, lengths: tuple[int, ...]
) -> list[Task]:
    return [
        Task(
            {"part": f"{pair.name}-steps", "system": name},
            StepTime(pair, name, sources[:n], width, lengths),
            repeats=True,
        )
        for name in ("pybeam", GENERATE)
    ]


class StepTime:
    """Every call times all lengths; the least time of each so far counts."""

    def __init__(
        self, pair: Pair, name: str, sources: list[list[int]], width: int, lengths: tuple[int, ...]
    ) -> None:
        self._pair, self._name, self._sources, self._width = pair, name, sources, width
        self._seconds: dict[int, list[float]] = {length: [] for length in lengths}

    def __call__(self) -> dict:
        n = len(self._sources)
        for length, seconds in self._seconds.items():
            translate = self._pair.until(self._name, self._width, n, length)
            if not seconds:
                translate(self._sources)
            start = time.perf_counter()
            translate(self._sources)
            seconds.append(time.perf_counter() - start)
        least = [(length, min(seconds)) for length, seconds in self._seconds.items()]
        pairs = list(itertools.pairwise(least))
        return {
            "n": n,
            "width": self._width,
            "repeats": len(seconds),
            "length": [(first + last) / 2 for (first, _), (last, _) in pairs],
            "step_ms": [1e3 * (b - a) / (last - first) for (first, a), (last, b) in pairs],
        }
