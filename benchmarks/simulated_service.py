"""A service on a virtual clock: all is real but the steps, which take what was measured.

Requests come at recorded times: Poisson arrivals, bursts, or days with a rush hour. They are as long as lines
of a corpus, and have deadlines. Whether a request that was refused would have been done in time is known of
some: of those that are to be refused, one in `AUDIT` begins all the same, at once.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pybeam
from pybeam.engine.schedule import LoadLevel
from pybeam.request import Hypothesis, Request, Result
from pybeam.serving.answers import Cost
from pybeam.serving.deadlines import Deadlines
from pybeam.serving.engine_thread import EngineThread
from pybeam.serving.errors import QueueFull
from pybeam.serving.forecast import NO_OUTLOOK
from pybeam.serving.model_queue import Limits, ModelQueue
from pybeam.serving.ticket import Ticket

RESULTS = Path(__file__).parent / "results"
AUDIT = 8
WIDTH = 5
# of a step's time, by which neighbours on the machine change it
NOISE = (0.9, 1.3)
SLOWER = 3.0
# a priority that nobody else has
FIRST = 10**6
LIMITS = Limits(max_waiting=10**6, max_waiting_work=None, ageing=10.0, max_step_seconds=None)
# seconds of a day in a simulation, and the share by which its rate rises and falls
DAY_SECONDS, TIDE = 20.0, 0.8


@dataclass(frozen=True)
class Costs:
    """Seconds: of a step apart from its rows, of one row in it, and of a source that is encoded."""

    step: float
    row: float
    source: float

    @classmethod
    def measured(cls, threads: int = 2) -> Costs:
        """Those of the example model in int8 with a beam of five, alone and with 64 sources.

        An engine with one thread computes by itself what two have computed.
        """
        alone = _row("one-request-cpu.json", case="fixed-5", system="pybeam int8", threads=threads)
        many = _row("translate-cpu.json", case="int8-5", system="pybeam int8 fixed 5, Fifo(64)")
        phases, rows = many["phase_seconds"], many["exp/step"]
        busy = 1.0 if threads == 2 else many["cpu_seconds"] / many["seconds"]
        seconds = busy * sum(value for name, value in phases.items() if name != "encode")
        least = alone["ms/step"] / 1e3
        row = (seconds / many["steps"] - least) / (rows - WIDTH)
        return cls(least - WIDTH * row, row, busy * phases["encode"] / many["lines"])


def _row(file: str, **wanted: Any) -> dict[str, Any]:
    rows = json.loads((RESULTS / file).read_text())["rows"]
    return next(row for row in rows if wanted.items() <= row.items())


@dataclass
class Sent:
    """A request, and what became of it.

    Attributes:
        at, timeout: when it comes, and the seconds in which it is to be done.
        tokens, steps: of its source, and those that it needs.
        answered: when it was answered.
        end: how: "made", "late", or "refused" before its deadline; or "full": too many waited.
        is_audited: whether it would have been refused.
        retry_after: of its refusal.
    """

    at: float
    timeout: float
    tokens: int
    steps: int
    answered: float = 0.0
    end: str = ""
    is_audited: bool = False
    retry_after: float | None = None


@dataclass(frozen=True)
class Counts:
    """Shares of requests, of one simulation or of a run.

    Attributes:
        number, made, late, refused: requests, and those of each end, without those that were audited.
        false: those of the audited that were done in time.
    """

    number: int
    made: int
    late: int
    refused: int
    audited: int
    false: int

    @classmethod
    def of(cls, requests: Iterable[Sent]) -> Counts:
        requests = list(requests)
        plain = [one for one in requests if not one.is_audited]
        ends = [one.end for one in plain]
        audited = [one for one in requests if one.is_audited]
        false = sum(one.end == "made" for one in audited)
        counts = (ends.count("made"), ends.count("late"), ends.count("refused"))
        return cls(len(requests), *counts, len(audited), false)

    @property
    def false_refusals(self) -> float:
        """The share of those that are to be refused that would have been done."""
        return self.false / self.audited if self.audited else 0.0

    @property
    def late_ones(self) -> float:
        """The share of those that are not refused that are late."""
        return self.late / (self.made + self.late) if self.late else 0.0


class AuditedDeadlines(Deadlines):
    """Lets one in `AUDIT` begin of those that are hopeless, before all others.

    Attributes:
        audited: their indices.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.audited: set[int] = set()
        self._chance = random.Random(0)

    def foresee(self, ticket: Ticket, rows: float, now: float) -> None:
        super().foresee(ticket, rows, now)
        if not ticket.is_hopeless or now >= (ticket.deadline or math.inf):
            return
        if ticket.index not in self.audited:
            if self._chance.randrange(AUDIT):
                return
            self.audited.add(ticket.index)
            # it comes first, and nobody asks whether it is in time
            self._waiting.remove(ticket.index)
            ticket.priority = FIRST
            self._waiting.add(ticket)
        ticket.is_hopeless, ticket.lateness, ticket.outlook = False, 0.0, NO_OUTLOOK


@contextlib.contextmanager
def audited() -> Iterator[None]:
    """Let queues that are made within audit their refusals."""
    with mock.patch("pybeam.serving.model_queue.Deadlines", AuditedDeadlines):
        yield


class _Asleep(Exception):
    """An engine has nothing to do."""


class _Thread(EngineThread):
    """Whose thread is never started."""

    def _sleep(self) -> None:
        if not self._queue.waiting:
            self.load, self._new_rows, self._queue.deadlines.rows[self] = LoadLevel(), 0.0, 0.0
            raise _Asleep
        super()._sleep()


@dataclass(eq=False)
class _Running:
    index: int
    sent: Sent
    done: int = 0
    expansions: int = 0


class _Engine:
    """Decodes as `Engine` does with `Fifo`, but computes nothing."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, places = simulation, simulation.places
        search = pybeam.fixed_beam(WIDTH, max_length=512)
        decoder: Any = SimpleNamespace(schedule=pybeam.Fifo(places), algorithm=search)
        self.thread = _Thread(simulation.queue, decoder, simulation.engines, lambda: None)
        self._running: list[_Running] = []
        self._ahead: deque[_Running] = deque()  # taken, waiting for a place
        self._window = min(16, max(1, places // 4))
        self.is_idle = True

    def turn(self) -> float | None:
        """End a step, and begin the next one. Returns its seconds; None: there is nothing to do."""
        for one in [one for one in self._running if one.done >= one.sent.steps]:
            self._end(one, None)
        rows = sum(WIDTH if one.done else 1 for one in self._running)
        tokens = sum(one.sent.tokens for one in self._running)
        leaving = self.thread.between_steps(LoadLevel(len(self._running), tokens, rows))
        for one in [*self._running, *self._ahead]:
            if one.index in leaving:
                self._end(one, leaving[one.index])
        num_encoded = self._admit()
        self.is_idle = not self._running
        if self.is_idle:
            return None
        rows = 0
        for one in self._running:
            own = WIDTH if one.done else 1
            one.done, one.expansions, rows = one.done + 1, one.expansions + own, rows + own
        self.thread.stats.steps += 1
        self.thread.stats.expansions += rows
        costs, chance = self._simulation.costs, self._simulation.chance
        seconds = costs.step + costs.row * rows + costs.source * num_encoded
        is_slow = self._simulation.now > self._simulation.slow_from
        return seconds * chance.uniform(*NOISE) * (SLOWER if is_slow else 1)

    def _admit(self) -> int:
        """Take requests while there are places. Returns how many were encoded."""
        num_encoded = 0
        while len(self._running) < self._simulation.places:
            if not self._ahead:
                num_encoded += self._read()
            if not self._ahead:
                break
            self._running.append(self._ahead.popleft())
        return num_encoded

    def _read(self) -> int:
        number = 0
        for number in range(self._window):
            try:
                found = self.thread.next(may_wait=not (self._running or self._ahead))
            except _Asleep:
                found = None
            if found is None:
                return number
            self._ahead.append(_Running(found[0], self._simulation.sent[found[0]]))
        return number + 1

    def _end(self, one: _Running, error: Exception | None) -> None:
        (self._ahead if one in self._ahead else self._running).remove(one)
        found = [] if error else [Hypothesis([1] * one.done, 0.0, 0.0, True)]
        result = Result(one.index, None, found, "width", one.done, one.expansions, error=error)
        self.thread._deliver(result)


@dataclass
class Simulation:
    """A service of some engines.

    Attributes:
        costs: of steps.
        places: requests that an engine decodes at once.
        retries: whether those that are refused come again once, when they are told to.
        slow_from: when steps begin to take `SLOWER` times as long.
        sent: the requests, by index.
    """

    costs: Costs
    engines: int = 1
    places: int = 64
    retries: bool = False
    seed: int = 0
    slow_from: float = math.inf
    now: float = 0.0
    sent: dict[int, Sent] = field(default_factory=dict)
    again: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        with audited():
            self.queue = ModelQueue("", LIMITS, lambda: self.now, None, lambda at: None)
        self._number = itertools.count()
        self._coming: list[tuple[float, int, Sent]] = []
        self._engines = [_Engine(self) for _ in range(self.engines)]
        self._turns: list[tuple[float, int, _Engine]] = []

    def run(self, requests: Sequence[Sent]) -> Counts:
        """Let these requests come. Returns what became of them."""
        for one in requests:
            self._come(one, one.at)
        while self._coming or self._turns:
            due = self._coming[0][0] if self._coming else math.inf
            turn = self._turns[0][0] if self._turns else math.inf
            alarm = self.queue.next_alarm
            self.now = max(self.now, min(due, turn, alarm))
            if alarm <= min(due, turn):
                self.queue.expire()
            elif due <= turn:
                self._submit(heapq.heappop(self._coming)[2])
            else:
                self._take_turn(heapq.heappop(self._turns)[2])
        assert not self.queue.taken and not self.queue.waiting
        return Counts.of(requests)

    def _come(self, one: Sent, at: float) -> None:
        heapq.heappush(self._coming, (at, next(self._number), one))

    def _take_turn(self, engine: _Engine) -> None:
        seconds = engine.turn()
        if seconds is not None:
            heapq.heappush(self._turns, (self.now + seconds, next(self._number), engine))

    def _submit(self, one: Sent) -> None:
        ticket = Ticket(
            request=Request([1] * one.tokens),
            cost=Cost(one.tokens, WIDTH),
            submitted=self.now,
            deadline=self.now + one.timeout,
        )
        ticket.future.add_done_callback(lambda _: self._ended(ticket, one))
        try:
            self.queue.submit(ticket)
        except QueueFull as error:
            one.end, one.retry_after = "full", error.retry_after
            return
        self.sent[ticket.index] = one
        for engine in self._engines:
            if engine.is_idle:
                engine.is_idle = False
                heapq.heappush(self._turns, (self.now, next(self._number), engine))

    def _ended(self, ticket: Ticket, one: Sent) -> None:
        assert ticket.deadline is not None
        error, one.answered = ticket.future.exception(), self.now
        one.is_audited = ticket.index in self.queue.deadlines.audited
        if error is None:
            one.end = "made" if self.now <= ticket.deadline else "late"
            return
        one.end = "refused" if self.now < ticket.deadline else "late"
        one.retry_after = ticket.retry_after
        if self.retries and one.end == "refused" and one.retry_after is not None:
            later = Sent(self.now + one.retry_after, one.timeout, one.tokens, one.steps)
            self.again.append(later)
            self._come(later, later.at)


class Lines:
    """Requests that are as long as lines of a corpus.

    Args:
        lengths: of the source and the output of each line.
        seed: of who comes when.
    """

    def __init__(self, lengths: Sequence[tuple[int, int]], seed: int = 0) -> None:
        self._lengths, self._chance = lengths, random.Random(seed)

    def one(self, at: float, timeout: float) -> Sent:
        """A request of some line that comes then."""
        return Sent(at, timeout, *self._chance.choice(self._lengths))

    def poisson(self, rate: float, seconds: float, timeout: float) -> list[Sent]:
        """Requests of which so many come in a second, whatever came before."""
        return [self.one(at, timeout) for at in self._times(rate, seconds)]

    def bursts(self, rate: float, seconds: float, timeout: float, size: int = 64) -> list[Sent]:
        """As many requests, of which each `size` come at once."""
        times = self._times(rate / size, seconds)
        return [self.one(at, timeout) for at in times for _ in range(size)]

    def days(self, rate: float, seconds: float, timeout: float) -> list[Sent]:
        """As many requests, of which more come in the middle of a day than in its night."""
        found = []
        for at in self._times(rate * (1 + TIDE), seconds):
            share = (1 - TIDE * math.cos(2 * math.pi * at / DAY_SECONDS)) / (1 + TIDE)
            if self._chance.random() < share:
                found.append(self.one(at, timeout))
        return found

    def _times(self, rate: float, seconds: float) -> list[float]:
        times, now = [], self._chance.expovariate(rate)
        while now < seconds:
            times.append(now)
            now += self._chance.expovariate(rate)
        return times


def capacity(costs: Costs, lengths: Sequence[tuple[int, int]], places: int = 64) -> float:
    """Requests that an engine can do in a second when all its places are taken."""
    steps = sum(length for _, length in lengths) / len(lengths)
    rows = places * WIDTH
    per_step = costs.step + costs.row * rows
    seconds = steps * per_step / places + costs.source
    return 1 / (seconds * sum(NOISE) / 2)
