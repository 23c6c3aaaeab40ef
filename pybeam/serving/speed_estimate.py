"""`SpeedEstimate`: how fast the engines of a model have worked lately, to say when there will be room."""

from __future__ import annotations

from pybeam.serving.answers import Cost

# what came before counts so much when a request is done: about the last 20 count
MEMORY = 0.95


class SpeedEstimate:
    """Averages over the requests that were done lately, the last ones most."""

    def __init__(self) -> None:
        self._work = self._busy = 0.0
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """The engines begin to work after they had nothing to do."""
        self._since = now

    def done(self, cost: Cost, now: float) -> None:
        """A request of this cost is done."""
        busy = 0.0 if self._since is None else now - self._since
        self._since = now
        self._work = MEMORY * self._work + cost.work
        self._busy = MEMORY * self._busy + busy

    def seconds_for(self, work: int) -> float:
        """Return the seconds that the engines need for so much work of several requests; 1 if unknown."""
        return work * self._busy / self._work if self._work and self._busy else 1.0
