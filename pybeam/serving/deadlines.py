"""`Deadlines`: when the requests of a queue must leave, and whether they can be done before."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping

from pybeam.request import Result
from pybeam.serving.forecast import Forecast, Outlook
from pybeam.serving.ticket import Ticket
from pybeam.serving.waiting import WaitingLine

# seconds after a deadline in which the best so far may still come, if a step is longer than others were
GRACE_SECONDS = 0.015
# between two looks at a request that waits
LOOK_SECONDS = 0.001


class Deadlines:
    """When the requests of a queue must leave. The lock of the queue guards all but `may_be_due`.

    Args:
        waiting, taken: the requests of the queue.
        wake_by: see `DeadlineTimer`.

    Attributes:
        forecast: how long requests take.
        rows: of each engine, those that it decodes.
    """

    def __init__(
        self, waiting: WaitingLine, taken: Mapping[int, Ticket], wake_by: Callable[[float], None]
    ) -> None:
        self._waiting, self._taken, self._wake_by = waiting, taken, wake_by
        self.forecast = Forecast()
        self.rows: dict[object, float] = {}
        # a heap of the times at which requests may have to leave, and their indices
        self._alarms: list[tuple[float, int]] = []

    def watch(self, ticket: Ticket, now: float) -> None:
        """Look at a request when it may have to leave, as far as can be said now."""
        self._ring(self._time_to_go(ticket, now), ticket)

    def may_be_due(self, now: float) -> bool:
        """Whether a request may have to leave now. It needs no lock: others are told by the timer."""
        return any(at <= now for at, _ in self._alarms[:1])

    def due(self, now: float) -> Iterator[Ticket]:
        """Yield the requests that must leave now."""
        while self._alarms and self._alarms[0][0] <= now:
            ticket = self._ticket(heapq.heappop(self._alarms)[1])
            if ticket is None:
                continue
            when = self._time_to_go(ticket, now)
            if when > now:
                self._ring(when, ticket)
            else:
                yield ticket

    @property
    def next_alarm(self) -> float:
        """When the next request may have to leave."""
        alarms = self._alarms
        while alarms and self._ticket(alarms[0][1]) is None:
            heapq.heappop(alarms)
        return alarms[0][0] if alarms else math.inf

    def foresee(self, ticket: Ticket, rows: float, now: float) -> None:
        """Note what is expected of a request if it begins now, beside so many rows.

        It is hopeless if it will hardly meet its deadline even so. A request that is alone begins in any
        case: expectations come from others and may be wrong. One that takes the best so far begins, too.
        """
        ticket.lateness, ticket.retry_after = 0.0, None
        ticket.outlook = self._outlook(ticket, rows, now)
        deadline = ticket.deadline
        ticket.is_hopeless = deadline is not None and now >= deadline
        if deadline is None or ticket.is_hopeless:
            return
        waits = self._waiting.get(ticket.index) is not None
        is_alone = not self._taken and len(self._waiting) == waits
        lateness = now + ticket.outlook.least - deadline
        if lateness > 0 and not (ticket.wants_best or is_alone):
            ticket.is_hopeless = True
            ticket.lateness, ticket.retry_after = lateness, self.retry_after(ticket, now)

    def retry_after(self, ticket: Ticket, now: float) -> float | None:
        """Return the seconds after which a request like this one should be done in time; None: never.

        So many of those that wait have begun then that it has the time that it will probably take. Without a
        deadline, all of them have.
        """
        all_begun = self.forecast.speed.seconds_for(self._waiting.work)
        if ticket.deadline is None:
            return all_begun
        seconds = ticket.deadline - ticket.submitted
        if self._outlook(ticket, 0.0, now).least > seconds:
            return None
        likely = self._outlook(ticket, self._fewest_rows, now).likely
        return max(0.0, all_begun + likely - seconds)

    def learn(self, ticket: Ticket, result: Result, num_steps: int, now: float) -> None:
        """Learn from a request that leaves its engine, which has so many steps behind it."""
        forecast, cost = self.forecast, ticket.cost
        forecast.speed.done(cost, now)
        # others are wrong, or have nothing to search
        if result.steps and ticket.request.target is None:
            is_whole = result.error is None and result.stop_reason != "interrupted"
            steps = num_steps - ticket.num_steps
            forecast.finished(cost.source_tokens, steps, is_whole=is_whole)
            forecast.had_rows(cost.width, result.expansions / result.steps)

    def _outlook(self, ticket: Ticket, rows: float, now: float) -> Outlook:
        cost, forecast = ticket.cost, self.forecast
        rows += forecast.rows(cost.width)
        return forecast.outlook(cost.source_tokens, ticket.most_steps, rows, now)

    @property
    def _fewest_rows(self) -> float:
        """The rows beside which a request begins at best."""
        return min(self.rows.values(), default=0.0)

    def _time_to_go(self, ticket: Ticket, now: float) -> float:
        """When a request may have to leave, after what is expected of it now."""
        deadline = ticket.deadline
        if deadline is None:
            return math.inf
        if ticket.index not in self._taken:
            # one that takes the best so far begins however late it is expected to be
            if ticket.wants_best:
                return deadline
            self.foresee(ticket, self._fewest_rows, now)
            if ticket.is_hopeless:
                return now
            return min(deadline, max(now + LOOK_SECONDS, deadline - ticket.outlook.least))
        if ticket.is_interrupted:
            return deadline + GRACE_SECONDS
        if not ticket.wants_best:
            return deadline
        # the step that runs when it is told must have ended at the deadline
        longest = self.forecast.longest_step(max(self.rows.values(), default=0.0), now)
        return deadline - min(longest, (deadline - ticket.submitted) / 2)

    def _ring(self, when: float, ticket: Ticket) -> None:
        if when < math.inf:
            heapq.heappush(self._alarms, (when, ticket.index))
            self._wake_by(when)

    def _ticket(self, index: int) -> Ticket | None:
        return self._waiting.get(index) or self._taken.get(index)
