"""`EngineThread`: a thread that decodes requests of a `ModelQueue`."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from pybeam.decoder import Decoder
from pybeam.engine.arrivals import Arrivals, Phase, Watch
from pybeam.engine.schedule import LoadLevel
from pybeam.engine.stats import Stats
from pybeam.engine.streaming import at_rest, end_with_program
from pybeam.platforms.system import give_way
from pybeam.request import Partial, Request, Result
from pybeam.search import widths
from pybeam.search.widths import Width
from pybeam.serving.engine_process import PATIENCE
from pybeam.serving.forked_decoder import ForkedDecoder
from pybeam.serving.model_queue import ModelQueue
from pybeam.serving.ticket import Ticket

log = logging.getLogger("pybeam.serving")

# after a stream that could not begin, while other engines work
RETRY_SECONDS = 1.0


class EngineThread(Arrivals):
    """A thread that decodes requests of a `ModelQueue`, and what its stream asks.

    Args:
        queue: where requests come from. Its lock guards all that is here.
        decoder: of this thread alone.
        num_engines: threads that share the queue.
        on_end: called in the thread when it ends.

    Attributes:
        load: what the last step decoded.
        stats: of its streams.
        is_idle: whether it sleeps until a request comes.
        is_stalled: whether its step takes too long.
    """

    keeps_order = True
    patience = PATIENCE

    def __init__(
        self, queue: ModelQueue, decoder: Decoder, num_engines: int, on_end: Callable[[], None]
    ) -> None:
        self.decoder = decoder
        self.load, self.stats = LoadLevel(), Stats()
        self.is_idle = self.is_stalled = False
        self._queue, self._num_engines, self._on_end = queue, num_engines, on_end
        self.has_news, self.must_leave = queue.has_news, queue.must_leave
        self._tickets: dict[int, Ticket] = {}
        self._num_taken = 0
        # requests that it may take before its next step
        self._share = 0
        # when it was last between two steps
        self._beat_at = math.inf
        # when its step began, and the rows of the requests that it has taken since, as far as is known
        self._step_began, self._new_rows = math.inf, 0.0
        self._num_steps = self._num_expansions = 0  # until then
        # whether it goes on with its steps until its process hears the answer
        self._hears_late = False
        self.thread = threading.Thread(target=self._run, name=f"pybeam {queue.name}", daemon=True)

    def next(self, may_wait: bool) -> tuple[int, Request] | None:
        queue = self._queue
        # who comes later is news
        if not (may_wait or queue.waiting):
            return None
        while True:
            queue.expire()
            with at_rest(may_wait):
                now, num_waiting, late, ticket = self._take(may_wait)
            queue.drop(late)
            if ticket is not None:
                end_with_program()
                queue.notify("on_started", ticket.cost, now - ticket.submitted)
                return ticket.index, self._narrowed(ticket, num_waiting)
            # those that waited may all have been too late
            if not may_wait or queue.is_closed:
                return None

    def _take(self, may_wait: bool) -> tuple[float, int, list[Ticket], Ticket | None]:
        """Take the request whose turn it is. Returns the time, how many wait, who is too late, and it."""
        queue = self._queue
        with queue.changed:
            # it asks, so its stream has begun
            queue.broken.discard(self)
            if may_wait:
                self._hears_late = False
                queue.unheard.pop(self, None)
                self._sleep()
                if not queue.taken:
                    queue.deadlines.forecast.speed.begin(queue.clock())
                self._share = self._fair_share()
            now, late = self._beat(), list[Ticket]()
            ticket: Ticket | None = None
            if self._share > 0:
                ticket, late = queue.choose(self._tickets.values(), self._rows, now)
            if ticket is not None:
                self._share -= 1
                ticket.num_steps = self.stats.steps
                self._tickets[ticket.index] = ticket
                self._num_taken += 1
                self._new_rows += queue.deadlines.forecast.rows(ticket.cost.width)
                queue.deadlines.rows[self] = self._rows
                if self._hears_late:
                    queue.unheard.setdefault(self, False)
                # or the first step would be its own call
                queue.note_news()
            return now, len(queue.waiting), late, ticket

    @property
    def _rows(self) -> float:
        """The rows that it decodes, and those that will be of the requests that it has just taken."""
        return self.load.rows + self._new_rows

    def _sleep(self) -> None:
        """Sleep until a request waits or none will come. The watchdog knows of it."""
        queue = self._queue
        self.load, self._new_rows, queue.deadlines.rows[self] = LoadLevel(), 0.0, 0.0
        while not queue.waiting and not queue.is_closed:
            self.is_idle = True
            queue.changed.wait()
        self._step_began = self._beat()
        self.is_idle = False

    def _fair_share(self) -> int:
        """How many of those that wait it may take before its next step; other engines take the rest."""
        return math.ceil(len(self._queue.waiting) / self._num_engines)

    def _narrowed(self, ticket: Ticket, num_waiting: int) -> Request:
        """Return the request, with a narrower beam if so many others wait that it must have one."""
        algorithm, request = self.decoder.algorithm, ticket.request
        # a width that is none is refused later
        asked: Width = request.width if widths.is_width(request.width) else algorithm.width
        ticket.width = widths.last(asked)
        limits = self._queue.limits.widths
        allowed = [width for least, width in limits if num_waiting >= least]
        if not allowed or request.target is not None:
            return request
        # as many hypotheses as were asked for must fit
        most = max(min(allowed), request.n_best or algorithm.n_best)
        if most >= widths.widest(asked):
            return request
        narrow = widths.narrowed(asked, most)
        ticket.width = widths.last(narrow)
        return dataclasses.replace(request, width=narrow)

    def between_steps(self, load: LoadLevel) -> Mapping[int, Exception]:
        self._queue.expire()
        with self._queue.changed:
            now = self._beat()
            self._learn_from_steps(now)
            self._new_rows, self._queue.deadlines.rows[self] = 0.0, load.rows
            self.load, self._share = load, self._fair_share()
            # said once
            told = self._queue.leaving.keys() & self._tickets.keys() if self._queue.leaving else ()
            leaving = {index: self._queue.leaving.pop(index) for index in told}
            # its process has heard the answer before, and goes on until it hears this one
            self._hears_late = isinstance(self.decoder, ForkedDecoder)
            self._queue.unheard.pop(self, None)
            if leaving and self._hears_late:
                self._queue.unheard[self] = True
            self._queue.settle_news()
        return leaving

    def _learn_from_steps(self, now: float) -> None:
        """Let the forecast know what the steps took since it was last asked; many may have gone by."""
        stats = self.stats
        if num := stats.steps - self._num_steps:
            rows = (stats.expansions - self._num_expansions) / num
            self._queue.deadlines.forecast.stepped(rows, (now - self._step_began) / num, now)
        self._step_began, self._num_steps = now, stats.steps
        self._num_expansions = stats.expansions

    def watch(self, index: int) -> Watch:
        return self._tickets[index].watch

    def enter(self, phase: Phase, indices: Iterable[int], ago: float = 0.0) -> None:
        when = self._queue.clock() - ago
        for index in indices:
            if index in self._tickets:
                self._tickets[index].enter(phase, when)

    def _beat(self) -> float:
        """Note that the engine is between two steps. Returns the time."""
        now = self._beat_at = self._queue.clock()
        self.is_stalled = self._queue.is_stalled = False
        return now

    def has_just_stalled(self, now: float, most: float) -> bool:
        """Note whether its step takes longer than `most` seconds. Returns whether that is news."""
        was_stalled = self.is_stalled
        self.is_stalled = was_stalled or (not self.is_idle and now >= self._beat_at + most)
        return self.is_stalled and not was_stalled

    def tickets(self) -> list[Ticket]:
        """The requests that it has taken."""
        with self._queue.changed:
            return list(self._tickets.values())

    def _run(self) -> None:
        queue, requests = self._queue, cast(Any, self)
        # one whose process computes only speaks with it
        if not isinstance(self.decoder, ForkedDecoder):
            give_way(queue.limits.nice)
        while True:
            num_taken = self._num_taken
            try:
                stream = self.decoder.stream(requests)
                self.stats = self.decoder.stats.continuing(self.stats)
                for item in stream:
                    self._deliver(item)
                break
            except BaseException as error:
                if not isinstance(error, SystemExit):
                    log.exception("an engine of model %r failed, and starts anew", queue.name)
                with queue.changed:
                    taken, self._tickets = self._tickets, {}
                    queue.unheard.pop(self, None)
                    if isinstance(self.decoder, ForkedDecoder):
                        queue.has_read[self.decoder.number] = False
                queue.fail(taken.values(), error)
                if self._num_taken == num_taken and self._is_over(error):
                    break
        self._on_end()

    def _is_over(self, error: BaseException) -> bool:
        """Wait until a request comes, after a stream that took none. Returns whether there will be none.

        Such a stream will fail again, so callers hear of it if no other engine works.
        """
        queue = self._queue
        with queue.changed:
            queue.broken.add(self)
            is_last = len(queue.broken) == self._num_engines
        if is_last:
            queue.cancel_waiting(error)
        else:
            self.is_idle = True
            time.sleep(RETRY_SECONDS)
        with queue.changed:
            self._sleep()
            # one that works may sleep, too
            queue.changed.notify()
            return not queue.waiting

    def _deliver(self, item: Result | Partial) -> None:
        """Hand out what the engine's stream yields."""
        ticket = self._tickets.get(item.index)
        if ticket is None:
            return
        if isinstance(item, Result):
            with self._queue.changed:
                del self._tickets[item.index]
            self._queue.done(ticket, item, self.stats.steps)
            return
        if len(item.tokens) > ticket.num_certain:
            ticket.num_certain = len(item.tokens)
            seconds = self._queue.clock() - ticket.submitted
            self._queue.notify("on_certain", ticket.num_certain, seconds)
        if ticket.tell is not None:
            ticket.tell(item)
