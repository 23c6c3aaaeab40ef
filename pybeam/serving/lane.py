"""`Lane`: one decoder, the thread that it runs in, and the requests that wait for it."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pybeam.decoder import Decoder
from pybeam.engine.arrivals import Arrivals, Phase, Watch
from pybeam.engine.failures import Interrupted
from pybeam.engine.schedule import Load
from pybeam.engine.stats import Stats
from pybeam.request import Partial, Request, Result
from pybeam.serving.answers import Listener, Reason, ServedResult, ServiceStatus
from pybeam.serving.errors import DeadlineExceeded, EngineStalled, QueueFull, ServiceClosed
from pybeam.serving.pace import Pace
from pybeam.serving.ticket import Ticket
from pybeam.serving.waiting import WaitingLine

log = logging.getLogger("pybeam.serving")


@dataclass(frozen=True)
class Limits:
    """The numbers of a service that its lanes need; see `Service`."""

    max_waiting: int
    max_waiting_work: int | None
    ageing: float
    max_step_seconds: float | None
    widths: tuple[tuple[int, int], ...] = ()  # with so many waiting, beams have at most that width


class Cancelled(Exception):
    """The reason why a request leaves whose caller has gone. Nobody sees it."""


class Abandoned(Exception):
    """The reason why a request leaves whose caller already has an error. Nobody sees it."""


class Lane(Arrivals):
    """One decoder, its engine thread, and the requests that wait for it.

    Callers' threads call `submit`, `cancel`, `close` and `status`; the engine's stream calls what `Arrivals`
    has. Futures are resolved, and hooks called, without the lock.
    """

    keeps_order = True

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        limits: Limits,
        clock: Callable[[], float],
        listener: Listener | None,
        ring_by: Callable[[float], None],
        on_end: Callable[[Lane], None],
    ) -> None:
        self.name, self.decoder = name, decoder
        self._limits, self._clock, self._listener = limits, clock, listener
        self._ring_by, self._on_end = ring_by, on_end
        self._changed = threading.Condition()
        self._waiting = WaitingLine(limits.ageing)
        self._taken: dict[int, Ticket] = {}
        self._leaving: dict[int, Exception] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap of deadlines and indices
        self._num_submitted = self._num_taken = 0
        self._is_closed = self._is_stalled = False
        # when the engine was last between two steps; None: it sleeps
        self._busy_since: float | None = None
        self._pace = Pace()
        self._load = Load()
        self._stats = Stats()
        self._thread = threading.Thread(target=self._run, name=f"pybeam {name}", daemon=True)

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Let a request wait for its turn.

        Raises QueueFull, ServiceClosed or EngineStalled.
        """
        try:
            with self._changed:
                self._check_room(ticket)
                ticket.index = self._num_submitted
                self._num_submitted += 1
                self._waiting.add(ticket)
                if ticket.deadline is not None:
                    heapq.heappush(self._deadlines, (ticket.deadline, ticket.index))
                self._changed.notify()
            if ticket.deadline is not None:
                self._ring_by(ticket.deadline)
        except QueueFull as error:
            self._hear("on_rejected", error.limit)
            raise
        self._hear("on_queued", ticket.cost)
        ticket.future.add_done_callback(lambda _: self._cancel(ticket))

    def _check_room(self, ticket: Ticket) -> None:
        if self._is_closed:
            raise ServiceClosed(f"model {self.name!r} is closing and takes no requests")
        if self._is_stalled:
            raise EngineStalled(self._stalled_message())
        limits, waiting = self._limits, self._waiting
        retry_after = self._pace.seconds_for(waiting.work)
        if len(waiting) >= limits.max_waiting:
            raise QueueFull("max_waiting", limits.max_waiting, len(waiting), retry_after)
        most = limits.max_waiting_work
        # a request of more work than all may have is taken if it is alone, as it would never be otherwise
        if most is not None and waiting and waiting.work + ticket.cost.work > most:
            raise QueueFull("max_waiting_work", most, waiting.work, retry_after)

    def _cancel(self, ticket: Ticket) -> None:
        """Let a request leave whose caller has cancelled its future."""
        if not ticket.future.cancelled():
            return
        # those that wait for several futures hear of it only then
        ticket.future.set_running_or_notify_cancel()
        with self._changed:
            removed = self._waiting.remove(ticket.index)
            if ticket.index in self._taken:
                self._leaving[ticket.index] = Cancelled()
        if removed:
            self._left(ticket, "cancelled")

    def close(self) -> None:
        """Take no more requests. The thread ends when all that have been taken are done."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def cancel_all(self, error: BaseException) -> None:
        """Give all callers this error, and let all requests leave."""
        with self._changed:
            waiting, taken = self._waiting.clear(), list(self._taken.values())
            for ticket in taken:
                self._leaving[ticket.index] = Abandoned()
        for ticket in waiting:
            self._left(ticket, "error")
        for ticket in (*waiting, *taken):
            ticket.resolve(error)

    def join(self, timeout: float | None) -> bool:
        """Wait until the thread has ended, at most so many seconds. Returns whether it has."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests and its engine is running."""
        return self._thread.is_alive() and not self._is_closed and not self._is_stalled

    def status(self) -> ServiceStatus:
        """What it does now."""
        with self._changed:
            stats, load = self._stats, self._load
            return ServiceStatus(
                is_ready=self.is_ready,
                num_running=len(self._taken),
                num_waiting=len(self._waiting),
                waiting_work=self._waiting.work,
                num_rows=load.rows,
                num_steps=stats.steps,
                num_pages=stats.pages,
                cache_use=1 - stats.free_pages / stats.pages if stats.pages else 0.0,
                phase_seconds=dict(stats.phase_seconds),
            )

    def look(self) -> float:
        """Notice deadlines that have passed, and a step that does not end. Returns when to look again."""
        self._expire()
        most, now = self._limits.max_step_seconds, self._clock()
        with self._changed:
            again = self._deadlines[0][0] if self._deadlines else math.inf
            if most is None:
                return again
            since, was_stalled = self._busy_since, self._is_stalled
            has_stalled = since is not None and now >= since + most
            self._is_stalled = was_stalled or has_stalled
        if has_stalled and not was_stalled:
            log.error("%s", self._stalled_message())
            self.cancel_all(EngineStalled(self._stalled_message()))
        # a step that begins now is noticed a quarter too late
        return min(again, now + most / 4)

    def _stalled_message(self) -> str:
        return (
            f"a step of model {self.name!r} takes longer than `max_step_seconds`, "
            f"{self._limits.max_step_seconds}; requests are refused until it ends"
        )

    def next(self, may_wait: bool) -> tuple[int, Request] | None:
        self._expire()
        with self._changed:
            while may_wait and not self._waiting and not self._is_closed:
                self._busy_since, self._load = None, Load()
                self._changed.wait()
            if may_wait:
                self._pace.begin(self._clock())
            now, late = self._beat(), []
            while (ticket := self._waiting.pop(now)) is not None and self._is_hopeless(ticket, now):
                late.append(ticket)
            num_waiting = len(self._waiting)
            if ticket is not None:
                self._taken[ticket.index] = ticket
                self._num_taken += 1
        self._drop(late)
        if ticket is None:
            return None
        self._hear("on_started", ticket.cost, now - ticket.submitted)
        return ticket.index, self._narrowed(ticket, num_waiting)

    def _narrowed(self, ticket: Ticket, num_waiting: int) -> Request:
        """Return the request, with a narrower beam if so many others wait that it must have one."""
        algorithm, request = self.decoder.algorithm, ticket.request
        ticket.width = request.width or algorithm.width
        allowed = [width for least, width in self._limits.widths if num_waiting >= least]
        if not allowed or request.target is not None:
            return request
        # as many hypotheses as were asked for must fit
        width = max(min(allowed), request.n_best or algorithm.n_best)
        if width >= ticket.width:
            return request
        ticket.width = width
        return dataclasses.replace(request, width=width)

    def _is_hopeless(self, ticket: Ticket, now: float) -> bool:
        """Whether a request is not expected to meet its deadline if it begins now.

        What is alone begins in any case: expectations come from others and may be wrong.
        """
        if ticket.deadline is None or ticket.wants_best or not (self._taken or self._waiting):
            return False
        return now + self._pace.seconds_of(ticket.cost) > ticket.deadline

    def between_steps(self, load: Load) -> Mapping[int, Exception]:
        self._expire()
        with self._changed:
            self._beat()
            self._load = load
            leaving, self._leaving = self._leaving, {}
        return leaving

    def watch(self, index: int) -> Watch:
        return self._taken[index].watch

    def enter(self, phase: Phase, indices: Iterable[int]) -> None:
        now = self._clock()
        for index in indices:
            if index in self._taken:
                self._taken[index].enter(phase, now)

    def _beat(self) -> float:
        """Note that the engine is between two steps. Returns the time."""
        now = self._busy_since = self._clock()
        self._is_stalled = False
        return now

    def _expire(self) -> None:
        """Let the requests leave whose deadlines have passed."""
        if not self._deadlines:
            return
        expired: list[Ticket] = []
        leaving: list[Ticket] = []
        with self._changed:
            now = self._clock()
            while self._deadlines and self._deadlines[0][0] <= now:
                _, index = heapq.heappop(self._deadlines)
                if (ticket := self._waiting.remove(index)) is not None:
                    expired.append(ticket)
                elif (ticket := self._taken.get(index)) is not None:
                    leaving.append(ticket)
                    error = Interrupted() if ticket.wants_best else ticket.too_late()
                    self._leaving.setdefault(index, error)
        self._drop(expired)
        for ticket in leaving:
            if not ticket.wants_best:
                # its caller need not wait until the step has ended
                ticket.resolve(ticket.too_late())

    def _drop(self, expired: list[Ticket]) -> None:
        """Tell the callers of requests that waited that it is too late."""
        for ticket in expired:
            self._left(ticket, "deadline")
            ticket.resolve(ticket.too_late())

    def _run(self) -> None:
        requests: Any = self
        while True:
            num_taken = self._num_taken
            try:
                stream = self.decoder.stream(requests)
                self._stats = self.decoder.stats
                for item in stream:
                    self._deliver(item)
                break
            except BaseException as error:
                log.exception("the engine of model %r failed, and starts anew", self.name)
                self._fail_taken(error)
                if self._num_taken == num_taken:
                    # a stream that fails before it takes a request would fail for ever
                    self.cancel_all(error)
        self._on_end(self)

    def _deliver(self, item: Result | Partial) -> None:
        """Hand out what the engine's stream yields."""
        ticket = self._taken.get(item.index)
        if ticket is None:
            return
        now = self._clock()
        if isinstance(item, Partial):
            if len(item.tokens) > ticket.num_certain:
                ticket.num_certain = len(item.tokens)
                self._hear("on_certain", ticket.num_certain, now - ticket.submitted)
            if ticket.tell is not None:
                ticket.tell(item)
            return
        ticket.enter("wait", now)
        with self._changed:
            del self._taken[item.index]
            self._pace.done(ticket.cost, ticket.times(), now)
        reason, answer = _answer(ticket, item)
        self._left(ticket, reason, item)
        ticket.resolve(answer)

    def _fail_taken(self, error: BaseException) -> None:
        """Give the error to all whose requests the engine had taken."""
        with self._changed:
            taken, self._taken = self._taken, {}
            self._leaving = {}
        for ticket in taken.values():
            self._left(ticket, "error")
            ticket.resolve(error)

    def _left(self, ticket: Ticket, reason: Reason, result: Result | None = None) -> None:
        ticket.enter("wait", self._clock())
        num_tokens = len(result.hypotheses[0].tokens) if result and result.hypotheses else 0
        self._hear("on_finished", reason, ticket.cost, ticket.times(result), num_tokens)

    def _hear(self, hook: str, *facts: Any) -> None:
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
