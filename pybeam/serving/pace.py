"""`Pace`: how fast an engine has worked lately, to say how long a request will take."""

from __future__ import annotations

from pybeam.serving.answers import Cost, Times

# what came before counts so much when a request is done: about the last 20 count
MEMORY = 0.95
# requests of one length differ in their outputs, and others may come beside them
MARGIN = 1.25


class Pace:
    """Averages over the requests that were done lately, the last ones most."""

    def __init__(self) -> None:
        self._work = self._busy = 0.0
        self._tokens = self._seconds = 0.0
        self._number = self._beside = 0.0
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """The engine begins to work after it had nothing to do."""
        self._since = now

    def done(self, cost: Cost, times: Times, now: float, num_running: int) -> None:
        """A request of this cost is done. So many were running, and it was one of them."""
        busy = 0.0 if self._since is None else now - self._since
        self._since = now
        self._work = MEMORY * self._work + cost.work
        self._busy = MEMORY * self._busy + busy
        self._tokens = MEMORY * self._tokens + max(1, cost.source_tokens)
        self._seconds = MEMORY * self._seconds + times.encoding + times.decoding
        self._number = MEMORY * self._number + 1
        self._beside = MEMORY * self._beside + num_running

    def seconds_for(self, work: int) -> float:
        """Return the seconds that the engine needs for so much work of several requests; 1 if unknown."""
        return work * self._busy / self._work if self._work and self._busy else 1.0

    def seconds_of(self, cost: Cost, num_running: int) -> float:
        """Return the seconds that one request will hardly exceed if so many run with it; 0 if unknown.

        The seconds per source token of the last requests; more if more run now than did then, as steps take
        longer with more rows.
        """
        if not self._number:
            return 0.0
        crowd = max(1.0, num_running * self._number / self._beside)
        return MARGIN * crowd * max(1, cost.source_tokens) * self._seconds / self._tokens
