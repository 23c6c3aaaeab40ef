"""`Forecast`: how long requests will take, learnt from the steps and the requests of a model's engines."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from pybeam.serving.speed_estimate import SpeedEstimate

# sizes of crowds are told apart by a fourth of an octave: steps of 16 rows are not those of 19
CROWDS_PER_OCTAVE = 4
# steps of a size that are kept, the fewest that say anything, and the seconds for which they do
NUM_STEPS, FEWEST_STEPS, STEPS_LAST = 32, 4, 60.0
# requests that are kept of those whose sources are of a length, to within an octave
NUM_REQUESTS = 128
# shares of requests that need fewer steps than the fewest, and no more than the likely number
RARELY, MOSTLY = 0.01, 0.97
# requests after which bounds are half as tight: the fewer there were, the more may the next one differ
FEW_REQUESTS = 8
# one request in so many may be missing from the bounds, because to find them takes longer than all else here
PATIENCE = 16
# steps may become so much shorter, because others leave
SHRINKS = 0.5
# how fast the mean number of rows for each place of a beam changes
MEMORY = 0.95


class Outlook(NamedTuple):
    """The time that a request will take if it begins now.

    Attributes:
        least: seconds that it will hardly beat; 0 if too little is known.
        step: seconds of a step, on average; 0 if that is unknown.
        steps: of its engine until it is done, if nothing unusual happens; 0 if too little is known.
    """

    least: float = 0.0
    step: float = 0.0
    steps: float = 0.0

    @property
    def likely(self) -> float:
        """Seconds in which it is done if nothing unusual happens."""
        return self.step * self.steps


NO_OUTLOOK = Outlook()


class Forecast:
    """The time that requests will take.

    It is a number of steps times the time of a step. The time of a step is learnt for each size of crowd,
    which is the number of rows that share it. A size of which too little is known takes the time of a smaller
    one, at least half as large, and else there is no forecast: nothing is concluded from a few rows about
    many.

    The number of steps, for each token of the source, is learnt for each length of sources, because short
    sources have more steps for each of their tokens. A source of a length that was never seen may need as
    many as any other, or as few as one: if requests were refused for what others need, their length would
    never be learnt. A request that leaves before its end says that it needs more than it had (Kaplan and
    Meier 1958): without these, only the fast ones would be known of those that are long.

    Attributes:
        speed: how much work the engines do.
    """

    def __init__(self) -> None:
        self.speed = SpeedEstimate()
        self._seconds: dict[int, _Last] = {}
        self._steps: dict[int, _Steps] = {}
        self._fill = 1.0

    def stepped(self, rows: float, seconds: float, now: float) -> None:
        """A step of so many rows took so long."""
        if rows > 0 and seconds > 0:
            self._seconds.setdefault(_crowd(rows), _Last()).add(seconds, now)

    def finished(self, tokens: int, steps: int, *, is_whole: bool = True) -> None:
        """A request left.

        Args:
            tokens: of its source.
            steps: of its engine, since it began.
            is_whole: whether it was done.
        """
        tokens = max(1, tokens)
        self._steps.setdefault(tokens.bit_length(), _Steps()).add(steps / tokens, is_whole)

    def had_rows(self, width: int, rows: float) -> None:
        """A request whose beam has that width had so many rows in a step, on average."""
        self._fill = MEMORY * self._fill + (1 - MEMORY) * rows / width

    def rows(self, width: int) -> float:
        """Return the rows that a request will have whose beam has that width."""
        return max(1.0, self._fill * width)

    def longest_step(self, rows: float, now: float) -> float:
        """Return the seconds that hardly a step of so many rows takes; 0 if that is unknown."""
        last = self._last_steps(rows, now)
        return last[-1] if last else 0.0

    def outlook(self, tokens: int, most_steps: float, rows: float, now: float) -> Outlook:
        """Return the time that a request will take.

        Args:
            tokens: of its source.
            most_steps: that it can take.
            rows: of all that will share its steps, its own included.
            now: seconds on the clock of `stepped`.
        """
        last, tokens = self._last_steps(rows, now), max(1, tokens)
        step = math.fsum(last) / len(last) if last else 0.0
        if not self._steps:
            return Outlook(step=step)
        own = self._steps.get(tokens.bit_length())
        known = self._steps.values() if own is None else [own]
        fewest = 0.0 if own is None else min(tokens * own.bounds[0], most_steps)
        least = fewest * SHRINKS * _median(last) if last else 0.0
        return Outlook(least, step, min(tokens * max(one.bounds[1] for one in known), most_steps))

    def _last_steps(self, rows: float, now: float) -> list[float]:
        """The last steps of so many rows, in order of their seconds, but the longest one.

        That may have been an accident.
        """
        size = _crowd(rows)
        for one in range(size, size - CROWDS_PER_OCTAVE - 1, -1):
            kept = self._seconds.get(one)
            last = [] if kept is None else kept.since(now - STEPS_LAST)
            if len(last) >= FEWEST_STEPS:
                return sorted(last)[:-1]
        return []


class _Last:
    """The seconds of the last steps of a crowd, and when they were."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=NUM_STEPS)
        self._at: deque[float] = deque(maxlen=NUM_STEPS)

    def add(self, seconds: float, at: float) -> None:
        self._seconds.append(seconds)
        self._at.append(at)

    def since(self, start: float) -> list[float]:
        while self._at and self._at[0] < start:
            self._at.popleft()
            self._seconds.popleft()
        return list(self._seconds)


class _Steps:
    """The steps for each token that the last requests of like length needed."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, bool]] = deque(maxlen=NUM_REQUESTS)
        self._bounds, self._num_new = (0.0, 0.0), 0

    def add(self, steps: float, is_whole: bool) -> None:
        self._kept.append((steps, is_whole))
        self._num_new += 1

    @property
    def bounds(self) -> tuple[float, float]:
        """The numbers that the next request will hardly be below, and hardly above.

        They are found again when a share of the requests is new.
        """
        if self._num_new > len(self._kept) // PATIENCE:
            self._bounds, self._num_new = self._found(), 0
        return self._bounds

    def _found(self) -> tuple[float, float]:
        kept = sorted(self._kept)
        number = len(kept)
        low, high, share = 0.0, kept[-1][0], 1.0
        for place, (steps, is_whole) in enumerate(kept):
            # the share of requests that need more, if those that left early go on as the others do
            share -= is_whole * share / (number - place)
            if is_whole and (share >= 1 - RARELY or not low):
                low = steps
            if share <= 1 - MOSTLY:
                high = steps
                break
        doubt = 1 + FEW_REQUESTS / number
        return low / doubt, high * doubt


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _crowd(rows: float) -> int:
    return int(CROWDS_PER_OCTAVE * math.log2(max(1.0, rows)))
