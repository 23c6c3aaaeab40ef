"""`Forecast`: the least time that a request will take, learnt from the steps and requests of an engine."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

# sizes of crowds are told apart by a fourth of an octave: steps of 16 rows are not those of 19
SIZES_PER_OCTAVE = 4
# steps of a size that are kept, the fewest that say anything, and the seconds for which they do
NUM_STEPS, FEWEST_STEPS, STEPS_LAST = 32, 4, 60.0
# requests that are kept
NUM_REQUESTS = 256
# a forecast is a bound that one in so many requests beats
RARELY = 8
# requests after which the bound is halved: the fewer there were, the more may the next one differ
FEW_REQUESTS = 8


class Forecast:
    """The time that a request will hardly beat.

    A request of n source tokens takes n times the time of a step times a factor. The time of a step is learnt
    for each size of crowd, which is the number of rows that share it: it is the median of its last steps. A
    size of which too little is known takes the time of a smaller one, at least half as large, and else there
    is no forecast: nothing is concluded from a few rows about many. The factor, which has the length of
    outputs in it, and what the crowd did afterwards, is known for the last requests. Seven in eight of them
    had a larger factor than the one that is expected.
    """

    def __init__(self) -> None:
        self._steps: dict[int, deque[tuple[float, float]]] = {}
        self._factors: deque[float] = deque(maxlen=NUM_REQUESTS)

    def stepped(self, rows: int, seconds: float, now: float) -> None:
        """A step of so many rows took so long."""
        if rows and seconds > 0:
            kept = self._steps.setdefault(_size(rows), deque(maxlen=NUM_STEPS))
            kept.append((now, seconds))

    def finished(self, tokens: int, step_seconds: float | None, seconds: float) -> None:
        """A request of so many tokens took so long.

        Args:
            tokens: of its source.
            step_seconds: the time of a step as it was known when it began.
            seconds: its own.
        """
        if step_seconds is not None:
            self._factors.append(seconds / (max(1, tokens) * step_seconds))

    def step_seconds(self, rows: int, now: float) -> float | None:
        """Return the seconds of a step of so many rows, or a little less; None if that is unknown."""
        size = _size(rows)
        for one in range(size, size - SIZES_PER_OCTAVE - 1, -1):
            last = [taken for at, taken in self._steps.get(one, ()) if at >= now - STEPS_LAST]
            if len(last) >= FEWEST_STEPS:
                return median(last)
        return None

    def least_seconds(self, tokens: int, step_seconds: float | None, most_steps: float) -> float:
        """Return the seconds that a request will hardly beat; 0 if too little is known.

        Args:
            tokens: of its source.
            step_seconds: the time of a step when it begins.
            most_steps: that it can take.
        """
        number = len(self._factors)
        if step_seconds is None or not number:
            return 0.0
        factor = sorted(self._factors)[number // RARELY] * number / (number + FEW_REQUESTS)
        return min(max(1, tokens) * factor, most_steps) * step_seconds


def _size(rows: int) -> int:
    return int(SIZES_PER_OCTAVE * math.log2(rows))
