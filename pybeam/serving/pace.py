"""`Pace`: how fast an engine has worked lately, to say how long a request will take."""

from __future__ import annotations

from pybeam.serving.answers import Cost, Times

# what came before counts so much when a request is done: about the last 20 count
MEMORY = 0.95


class Pace:
    """Averages over the requests that were done lately, the last ones most."""

    def __init__(self) -> None:
        self._work = self._busy = 0.0
        self._tokens = self._alone = 0.0
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """The engine begins to work after it had nothing to do."""
        self._since = now

    def done(self, cost: Cost, times: Times, now: float) -> None:
        """A request of this cost is done."""
        busy = 0.0 if self._since is None else now - self._since
        self._since = now
        self._work = MEMORY * self._work + cost.work
        self._busy = MEMORY * self._busy + busy
        self._tokens = MEMORY * self._tokens + max(1, cost.source_tokens)
        self._alone = MEMORY * self._alone + times.encoding + times.decoding

    def seconds_for(self, work: int) -> float:
        """Return the seconds that the engine needs for so much work of several requests; 1 if unknown."""
        return work * self._busy / self._work if self._work and self._busy else 1.0

    def seconds_of(self, cost: Cost) -> float:
        """Return the seconds from the begin of one request to its end, beside others; 0 if unknown."""
        return max(1, cost.source_tokens) * self._alone / self._tokens if self._tokens else 0.0
