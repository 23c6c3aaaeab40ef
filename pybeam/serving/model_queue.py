"""`ModelQueue`: the requests of one model, from `submit` to their answers."""

from __future__ import annotations

import logging
import math
import mmap
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from pybeam.engine.failures import Interrupted
from pybeam.request import Request, Result
from pybeam.serving.answers import Listener, Reason, ServedResult
from pybeam.serving.deadlines import Deadlines
from pybeam.serving.errors import DeadlineExceeded, EngineStalled, QueueFull, ServiceClosed
from pybeam.serving.options import Options
from pybeam.serving.room import Limits, giving_way, has_room
from pybeam.serving.ticket import Ticket
from pybeam.serving.waiting import WaitingLine

log = logging.getLogger("pybeam.serving")

# of a model
MOST_PROCESSES = 1024
SMALLEST = Request([0])


class Cancelled(Exception):
    """The reason why a request leaves whose caller has gone. Nobody sees it."""


class Abandoned(Exception):
    """The reason why a request leaves whose caller already has an error. Nobody sees it."""


class ModelQueue:
    """The requests of one model: those that wait, and those that its engines have taken.

    Callers' threads and the engines' call it. Futures are resolved, and hooks called, without the lock.

    Attributes:
        changed: the lock of all that is here. It is notified when a request comes, and when the queue closes.
        waiting: the requests that wait.
        taken: those that engines have, by index.
        leaving: those of them that must leave before the next step of their engine, and why; each is in it
            until its engine has been told.
        has_news, must_leave: see `Arrivals`; those of all engines.
        has_read: [n, 1] bool, whether an engine's process, by its number, has read a request that its stream
            has not taken.
        unheard: the engines whose process has not heard its last answer, and whether a request must leave by
            that answer.
        broken: the engines whose last stream could not begin.
        deadlines: when they must leave.
        is_closed: whether no more requests are taken.
        is_stalled: whether no engine works, since the steps of all take too long.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        clock: Callable[[], float],
        listener: Listener | None,
        wake_by: Callable[[float], None],
    ) -> None:
        self.name, self.limits, self.clock = name, limits, clock
        self._listener = listener
        self.changed = threading.Condition()
        self.waiting = WaitingLine(limits.ageing)
        self.taken: dict[int, Ticket] = {}
        self.leaving: dict[int, Exception] = {}
        self.deadlines = Deadlines(self.waiting, self.taken, wake_by)
        # copies of this process see them, too
        self._flags = mmap.mmap(-1, 2 + MOST_PROCESSES)
        flags = np.frombuffer(self._flags, np.bool_)[:, None]
        self.has_news, self.must_leave, self.has_read = flags[0], flags[1], flags[2:]
        self.unheard: dict[object, bool] = {}
        self.broken: set[object] = set()
        self.is_closed = self.is_stalled = False
        self._num_submitted = 0

    def submit(self, ticket: Ticket) -> None:
        """Let a request wait for its turn. Where too many wait, those of lower levels give way to it.

        Raises QueueFull, ServiceClosed or EngineStalled.
        """
        try:
            with self.changed:
                leaving = self._giving_way(ticket)
                for one in leaving:
                    self.waiting.remove(one.index)
                ticket.index = self._num_submitted
                self._num_submitted += 1
                self.waiting.add(ticket)
                self.has_news[0] = True
                self.deadlines.watch(ticket, self.clock())
                self.changed.notify()
                refused = [(one, self._full(one)) for one in leaving]
        except QueueFull as error:
            self.notify("on_rejected", error.limit)
            raise
        for one, full in refused:
            self.notify("on_rejected", full.limit)
            self.left(one, "error")
            one.resolve(full)
        self.notify("on_queued", ticket.cost)
        # one that held the ticket would keep it, and its future, until garbage is collected
        ticket.future.add_done_callback(partial(self._cancel, ticket.index))

    @property
    def has_room(self) -> bool:
        """Whether it takes a request of little work now, whatever its priority."""
        return not (self.is_closed or self.is_stalled) and has_room(self.limits, self.waiting)

    def check_room(self, options: Options) -> None:
        """Raise what becomes at once of a request with these options, if it has one token and one row.

        Raises:
            QueueFull, ServiceClosed, EngineStalled: see `submit`.
            DeadlineExceeded: its time is over.
        """
        now = self.clock()
        ticket = Ticket.of(SMALLEST, options, now)
        if ticket.deadline is not None and ticket.deadline <= now:
            raise ticket.too_late()
        try:
            with self.changed:
                self._giving_way(ticket)
        except QueueFull as error:
            self.notify("on_rejected", error.limit)
            raise

    def _giving_way(self, ticket: Ticket) -> list[Ticket]:
        """Return the requests that must leave before this one may wait: most often none.

        Raises QueueFull, ServiceClosed or EngineStalled, if it may not.
        """
        if self.is_closed:
            raise ServiceClosed(f"model {self.name!r} is closing and takes no requests")
        if self.is_stalled:
            raise self.stalled()
        leaving = giving_way(self.limits, self.waiting, ticket, self.clock())
        if leaving is None:
            raise self._full(ticket)
        return leaving

    def _full(self, ticket: Ticket) -> QueueFull:
        limits, waiting = self.limits, self.waiting
        all_begun = self.deadlines.forecast.speed.seconds_for(waiting.work)
        in_time = self.deadlines.retry_after(ticket, self.clock())
        again = all_begun if in_time is None else max(all_begun / len(waiting), in_time)
        most = limits.max_waiting_work
        if len(waiting) >= limits.max_waiting or most is None:
            return QueueFull("max_waiting", limits.max_waiting, len(waiting), again)
        return QueueFull("max_waiting_work", most, waiting.work, again)

    def stalled(self) -> EngineStalled:
        """The error of callers whose engine does not end its step."""
        return EngineStalled(
            f"a step of model {self.name!r} takes longer than `max_step_seconds`, "
            f"{self.limits.max_step_seconds}; its requests fail, and others while no engine works"
        )

    def _cancel(self, index: int, future: Future[ServedResult]) -> None:
        """Let a request leave whose caller has cancelled its future."""
        if not future.cancelled():
            return
        # those that wait for several futures hear of it only then
        future.set_running_or_notify_cancel()
        with self.changed:
            removed, taken = self.waiting.remove(index), self.taken.get(index)
            if taken is not None:
                self._let_leave(taken, Cancelled())
        if removed is not None:
            self.left(removed, "cancelled")

    def _let_leave(self, ticket: Ticket, error: Exception) -> None:
        """Let a request leave its engine, if one has it, for the first reason that is given."""
        if self.taken.get(ticket.index) is not ticket:
            return
        self.leaving.setdefault(ticket.index, error)
        self.has_news[0] = self.must_leave[0] = True

    def settle_news(self) -> None:
        """Note who has not been heard: whether a request must leave, and whether one waits or must leave.

        The caller holds the lock.
        """
        self.must_leave[0] = bool(self.leaving) or any(self.unheard.values())
        self.note_news()

    def note_news(self) -> None:
        """Note whether a request waits or must leave, or an engine has not heard or taken one.

        The caller holds the lock.
        """
        self.has_news[0] = bool(self.waiting or self.unheard or self.must_leave[0])
        # a process sets its own flag first, so one that comes meanwhile is seen
        if self._flags.find(b"\1", 2) > 0:
            self.has_news[0] = True

    def close(self) -> None:
        """Take no more requests. The engines end when all that have been taken are done."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def cancel_waiting(self, error: BaseException) -> None:
        """Give the callers of all requests that wait this error."""
        with self.changed:
            waiting = self.waiting.clear()
        for ticket in waiting:
            self.left(ticket, "error")
            ticket.resolve(error)

    def cancel_taken(self, tickets: Iterable[Ticket], error: BaseException) -> None:
        """Give the callers of requests that engines have this error, and let the requests leave."""
        tickets = list(tickets)
        with self.changed:
            for ticket in tickets:
                self._let_leave(ticket, Abandoned())
        for ticket in tickets:
            ticket.resolve(error)

    def cancel_all(self, error: BaseException) -> None:
        """Give all callers this error, and let all requests leave."""
        self.cancel_waiting(error)
        with self.changed:
            taken = list(self.taken.values())
        self.cancel_taken(taken, error)

    def choose(
        self, running: Collection[Ticket], rows: float, now: float
    ) -> tuple[Ticket | None, list[Ticket]]:
        """Choose who begins beside those that an engine decodes, which have so many rows.

        Nobody does if the steps of all would be so long that one of them is probably late. Those of lower
        priority do not count. A request that would probably be late itself lets all others pass, and begins
        beside nobody. The caller holds the lock.

        Returns the request, and those whose turn came too late.
        """
        waiting, late = self.waiting, list[Ticket]()
        while (ticket := waiting.next(now)) is not None:
            self.deadlines.foresee(ticket, rows, now)
            if ticket.is_hopeless:
                waiting.remove(ticket.index)
                late.append(ticket)
                continue
            step, longest = ticket.outlook.step, ticket.spare_step(now)
            if step > longest and not waiting.is_deferred(ticket):
                waiting.defer(ticket)
                continue
            bounds = (one.longest_step for one in running if one.priority >= ticket.priority)
            if running and step > min(longest, *bounds, math.inf):
                return None, late
            waiting.begin(ticket)
            self._take(ticket, longest if longest >= step else math.inf, now)
            break
        return ticket, late

    def _take(self, ticket: Ticket, longest_step: float, now: float) -> None:
        self.taken[ticket.index] = ticket
        ticket.longest_step = longest_step
        if ticket.wants_best:
            # it leaves a step before its deadline
            self.deadlines.watch(ticket, now)

    @property
    def next_alarm(self) -> float:
        """When the next request may have to leave."""
        with self.changed:
            return self.deadlines.next_alarm

    def expire(self) -> None:
        """Let the requests leave whose time is over, or too short."""
        if not self.deadlines.may_be_due(self.clock()):
            return
        refused: list[Ticket] = []
        late: list[Ticket] = []
        with self.changed:
            now = self.clock()
            for ticket in self.deadlines.due(now):
                if self.waiting.remove(ticket.index) is not None:
                    refused.append(ticket)
                elif ticket.wants_best and not ticket.is_interrupted:
                    ticket.is_interrupted = True
                    self._let_leave(ticket, Interrupted())
                    self.deadlines.watch(ticket, now)
                else:
                    self._let_leave(ticket, ticket.too_late())
                    late.append(ticket)
        self.drop(refused)
        for ticket in late:
            # its caller need not wait until the step has ended
            ticket.resolve(ticket.too_late())

    def drop(self, expired: list[Ticket]) -> None:
        """Tell the callers of requests that waited that it is, or will be, too late."""
        for ticket in expired:
            self.left(ticket, "deadline")
            ticket.resolve(ticket.too_late())

    def done(self, ticket: Ticket, result: Result, num_steps: int) -> None:
        """Hand out what became of a request that an engine had taken, which has so many steps behind it."""
        now = self.clock()
        ticket.enter("wait", now)
        with self.changed:
            self.deadlines.learn(ticket, result, num_steps, now)
            self._forget(ticket)
        reason, answer = _answer(ticket, result)
        self.left(ticket, reason, result)
        ticket.resolve(answer)

    def fail(self, tickets: Iterable[Ticket], error: BaseException) -> None:
        """Give the error to the callers of requests whose engine has failed."""
        tickets = list(tickets)
        with self.changed:
            for ticket in tickets:
                self._forget(ticket)
        for ticket in tickets:
            self.left(ticket, "error")
            ticket.resolve(error)

    def _forget(self, ticket: Ticket) -> None:
        """Note that no engine has this request any more."""
        del self.taken[ticket.index]
        self.leaving.pop(ticket.index, None)

    def left(self, ticket: Ticket, reason: Reason, result: Result | None = None) -> None:
        """Tell the listener that a request is no longer here."""
        ticket.enter("wait", self.clock())
        num_tokens = len(result.hypotheses[0].tokens) if result and result.hypotheses else 0
        self.notify("on_finished", reason, ticket.cost, ticket.times(result), num_tokens)

    def notify(self, hook: str, *facts: Any) -> None:
        """Call a hook of the listener."""
        if self._listener is None:
            return
        try:
            getattr(self._listener, hook)(self.name, *facts)
        except Exception:
            log.exception("the hook %s of a service's listener failed", hook)


def _answer(ticket: Ticket, result: Result) -> tuple[Reason, ServedResult | BaseException]:
    """Return why a request left, and what its caller gets."""
    error = result.error
    if isinstance(error, Cancelled):
        return "cancelled", error
    if isinstance(error, DeadlineExceeded):
        return "deadline", error
    if error is not None:
        return "error", error
    if result.stop_reason != "interrupted":
        return "finished", ServedResult(result, ticket.times(result), ticket.width)
    if not result.hypotheses:
        return "deadline", ticket.too_late()
    return "deadline", ServedResult(result, ticket.times(result), ticket.width, "deadline")
