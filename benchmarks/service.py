"""`pybeam serve` under load, beside CTranslate2 in the same shell and in a plain one: same model and machine.

Of CTranslate2's layouts (one batch at a time on all threads, or one on each) the one that answers more is
measured. A load is a rate of arrivals as a share of what it answers in float32 when 64 clients keep it busy.
A system is not given more load once it has collapsed. One server works at a time.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy

from benchmarks.latency import arrivals, percentiles
from benchmarks.peers import PEER
from benchmarks.servers import PLAIN, Servers, System, offline, ours, peers
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from pybeam.traffic import Address, Answer, Clients, Window, closed_loop, open_loop, post
from pybeam.traffic.events import is_certain

PATH = "/v1/translations"
WIDTHS = (5, 1)
LOADS = (0.5, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0)
ROW_SECONDS = 5.0
# at the start of a row the server is not busy yet, so its first share is not counted
WARM_UP = 0.1
# a server whose median is this slow has collapsed
COLLAPSED_MS = 1000.0
CLIENTS, MANY_CLIENTS = 16, 64
GOOD_MS = (200, 500)
OVERLOAD, DEADLINE = 2.0, 0.5
# requests a second, and seconds
AT_RATE, AT_SECONDS = 160.0, 20.0
STREAM_LOAD = 0.6
# ten minutes in quarters, at a share of what it answers
STEADY_SECONDS, STEADY_LOAD = 600.0, 0.8
OFFLINE_LINES = 512
TEXTS_PER_REQUEST = 16
# seconds after which nobody waits for an answer
TIMEOUT = 10.0
# seconds after which the threads of the system before have stopped spinning
SETTLE = 0.3
SEED = 0


def service(setup: Setup) -> Iterator[list[Task]]:
    """Latency and goodput of `pybeam serve` under load, beside CTranslate2 in two shells."""
    servers = Servers(setup)
    try:
        for width in (5,) if setup.is_tiny else WIDTHS:
            yield from _cases(Bench(setup, servers, width))
            servers.close()
    finally:
        servers.close()


def _cases(bench: Bench) -> Iterator[list[Task]]:
    width, own = bench.width, ours(bench.width)
    layouts = peers(width, bench.setup.threads)
    int8 = own[1]
    yield [Task(f"peer-{width}", one.layout, lambda one=one: bench.full(one)) for one in layouts]
    for clients in (CLIENTS, MANY_CLIENTS):
        yield bench.tasks(f"closed-{width}", bench.systems, bench.closed, clients=clients)
    if width == 1 or bench.setup.is_tiny:
        chosen = [one for one in bench.systems if one.dtype == "int8"]
        yield bench.tasks("at-160", chosen, bench.at_rate)
    for load in bench.loads:
        going = [one for one in bench.systems if not bench.has_collapsed(one)]
        if going:
            yield bench.tasks(f"load-{width}", going, bench.open, load=load)
    held = [one for one in bench.systems if bench.setup.is_tiny or bench.rows(one)]
    yield bench.tasks(f"held-{width}", held or bench.systems, bench.held)
    # a plain server keeps no deadline
    keeping = [one for one in bench.systems if one.library != PLAIN]
    yield bench.tasks(f"overload-{width}", keeping, bench.overload)
    yield bench.tasks(f"first-{width}", own, bench.first)
    yield bench.tasks(f"offline-{width}", own, bench.offline)
    for clients in (1, CLIENTS):
        layouts = int8, bench.in_processes[0]
        yield bench.tasks(f"front-{width}", layouts, bench.closed, clients=clients)
    if width > 1:
        yield bench.tasks(f"steady-{width}", [int8], bench.steady)


@dataclass
class Bench:
    """The servers of one width, and what has been measured of them."""

    setup: Setup
    servers: Servers
    width: int
    _full: dict[System, dict] = field(default_factory=dict)

    @property
    def systems(self) -> list[System]:
        """The peer's come first: ours are compared with them. A name stands for all layouts; see `best`."""
        layouts = {str(one): one for one in peers(self.width, self.setup.threads)}
        return [*layouts.values(), *ours(self.width), *self.in_processes]

    @cached_property
    def in_processes(self) -> list[System]:
        """Our int8, whose engines are processes of their own, with each search."""
        own = [one for one in ours(self.width) if one.dtype == "int8"]
        return [replace(one, processes=self.setup.threads) for one in own]

    def best(self, system: System) -> System:
        """The layout of a system that answers most, which is measured first unless this run has done so."""
        layouts = [one for one in peers(self.width, self.setup.threads) if str(one) == str(system)]
        return max(layouts, key=self.capacity) if len(layouts) > 1 else system

    @property
    def loads(self) -> tuple[float, ...]:
        return LOADS[1:2] if self.setup.is_tiny else LOADS

    @property
    def seconds(self) -> float:
        return 0.3 if self.setup.is_tiny else ROW_SECONDS

    @property
    def seconds_steady(self) -> float:
        return 1.0 if self.setup.is_tiny else STEADY_SECONDS

    @cached_property
    def texts(self) -> list[str]:
        data = self.setup.corpus()
        return [data.pieces.decode(source) for source in data.sources]

    def tasks(self, case: str, chosen: Sequence[System], measure, **more) -> list[Task]:
        return [
            Task(case, str(one), lambda one=one: measure(self.best(one), **more), more=more)
            for one in chosen
        ]

    def rows(self, system: System, case: str = "load") -> list[dict]:
        """The rows that this run has measured of it, lowest load first."""
        found = [
            row
            for row in self.setup.journal.own_rows
            if (row["case"], row["system"]) == (f"{case}-{self.width}", str(system))
            and "error" not in row
        ]
        return sorted(found, key=lambda row: row.get("load", 0))

    def has_collapsed(self, system: System) -> bool:
        rows = self.rows(system)
        return bool(rows) and rows[-1]["p50_ms"] > COLLAPSED_MS

    def closed(self, system: System, clients: int) -> dict:
        """So many clients, each with one request at a time; that of many is the measurement of `full`."""
        return self.full(system) if clients == MANY_CLIENTS else self._closed(system, clients)

    def full(self, system: System) -> dict:
        """As many requests as it can answer: many clients keep it busy."""
        if system not in self._full:
            self._full[system] = self._closed(system, MANY_CLIENTS)
        return self._full[system]

    def _closed(self, system: System, clients: int) -> dict:
        answers, seconds, cpu = self._busy(system, self.texts, clients)
        return cpu | _facts(answers, seconds)

    def at_rate(self, system: System) -> dict:
        """Poisson arrivals at a rate that is the same for all."""
        seconds = self.seconds if self.setup.is_tiny else AT_SECONDS
        return self._arrivals(system, AT_RATE, seconds=seconds)

    def open(self, system: System, load: float) -> dict:
        """Poisson arrivals."""
        rate = load * self.capacity(self.best(self.systems[0]))
        return self._arrivals(system, rate)

    def held(self, system: System) -> dict:
        """The highest load whose p99 is within a limit, between the loads that were measured."""
        row: dict[str, float] = {}
        for limit in GOOD_MS:
            theirs, own = (_held(self.rows(one), limit) for one in (self.systems[0], system))
            row[f"req/s at p99 {limit} ms"] = own
            row[f"of {PEER} float32 at {limit} ms"] = own / theirs if theirs else 0.0
        return row

    def overload(self, system: System) -> dict:
        """Twice its capacity, with a deadline. Goodput should stay, and nothing should end late."""
        rate = OVERLOAD * self.capacity(system)
        row = self._arrivals(system, rate, {"timeout": DEADLINE})
        good = _good(500)
        rows = [*self.rows(system), *self.rows(system, "closed")]
        best = max((one[good] for one in rows), default=0.0)
        return row | {"of best goodput": row[good] / best if best else 0.0}

    def first(self, system: System) -> dict:
        """Time to the first certain token of streams, at a load that all can bear."""
        rate = STREAM_LOAD * self.capacity(self.best(self.systems[0]))
        return self._arrivals(system, rate, {"stream": True})

    def steady(self, system: System) -> dict:
        """Ten minutes at a load it can bear: latency, memory and open files of each quarter."""
        rate = STEADY_LOAD * self.capacity(system)
        quarters = []
        for _ in range(4):
            answers = self._arrivals(system, rate, seconds=self.seconds_steady / 4)
            quarters.append(answers | self.servers.held(system))
        names = ("p50_ms", "p99_ms", "resident_bytes", "descriptors")
        lists = {name: [one.get(name) for one in quarters] for name in names}
        failed = sum(v for one in quarters for key, v in one.items() if key.startswith("status"))
        number = sum(one["requests"] for one in quarters)
        return {"req/s": rate, "requests": number, "not 200": failed} | lists

    def offline(self, system: System) -> dict:
        """The server with many clients, alone and with many texts a request, beside `decoder.decode`."""
        time.sleep(SETTLE)
        alone = offline(self.setup, system, 16 if self.setup.is_tiny else OFFLINE_LINES)
        lines = int(alone["lines"])
        rate, offline_cpu = lines / alone["seconds"], alone["cpu_seconds"] / lines
        several = [
            self.texts[i : i + TEXTS_PER_REQUEST] for i in range(0, lines, TEXTS_PER_REQUEST)
        ]
        num_clients = 2 * MANY_CLIENTS // TEXTS_PER_REQUEST
        answers, seconds, cpu = self._busy(system, several, num_clients)
        number = TEXTS_PER_REQUEST * sum(one.status == 200 for one in answers)
        single = self.capacity(system)
        return {
            "decode lines/s": rate,
            "server lines/s": single,
            "of decode": single / rate,
            f"server lines/s, {TEXTS_PER_REQUEST} a request": number / seconds,
            f"of decode, {TEXTS_PER_REQUEST} a request": number / seconds / rate,
            "decode cpu_ms": 1e3 * offline_cpu,
            "server cpu_ms": self.full(system)["cpu_ms"],
            f"server cpu_ms, {TEXTS_PER_REQUEST} a request": cpu["cpu_ms"] / TEXTS_PER_REQUEST,
        }

    def capacity(self, system: System) -> float:
        """Requests per second that it answers when many clients keep it busy."""
        return self.full(system)["answered/s"]

    def _busy(
        self, system: System, texts: Sequence[str | list[str]], num_clients: int
    ) -> tuple[list[Answer], float, dict[str, float]]:
        """The answers of a closed loop, its seconds, and columns with the server's CPU of a request."""
        contents = [post(PATH, {"text": text}) for text in texts]
        address = self._address(system)
        before, start = self.servers.computed(system), time.perf_counter()
        following, window = itertools.cycle(contents), Window(seconds=self.seconds)
        answers = answers_of(address, closed_loop, following, num_clients, window)
        seconds = time.perf_counter() - start
        cpu = self.servers.computed(system).per_request(before, len(answers))
        return answers, seconds, cpu

    def _arrivals(
        self, system: System, rate: float, more: dict | None = None, seconds: float | None = None
    ) -> dict:
        due = arrivals(rate, max(10, int(rate * (seconds or self.seconds))), SEED)
        chosen = numpy.random.default_rng(SEED).integers(len(self.texts), size=len(due))
        contents = [post(PATH, {"text": self.texts[i], **(more or {})}) for i in chosen]
        answers = answers_of(self._address(system), open_loop, contents, due)
        begun = int(WARM_UP * len(due))
        return {"req/s": rate} | _facts(answers[begun:], float(due[-1] - due[begun]))

    def _address(self, system: System):
        address = self.servers.address(system)
        time.sleep(SETTLE)
        return address


def answers_of(address: Address, loop: Callable[..., Awaitable[None]], *load: Any) -> list[Answer]:
    """Let a loop of `pybeam.traffic` send its load. Returns the answers, in the order of their requests."""
    answers: list[tuple[float, Answer]] = []

    # the objects of a whole benchmark would be looked at again and again while answers wait to be read
    gc.collect()
    gc.freeze()

    async def send() -> None:
        async with Clients(address, timeout=TIMEOUT, is_text=is_certain) as clients:
            await loop(clients, *load, lambda *one: answers.append(one))

    asyncio.run(send())
    return [answer for _, answer in sorted(answers, key=itemgetter(0))]


def _good(limit: int) -> str:
    return f"good/s, {limit} ms"


def _facts(answers: Sequence[Answer], seconds: float) -> dict:
    """Columns of a row. Refused requests are no part of the percentiles, and of no goodput."""
    done = [one for one in answers if one.status == 200]
    row: dict = {"requests": len(answers), "answered/s": len(done) / seconds}
    if done:
        row |= percentiles([one.latency for one in done])
    for limit in GOOD_MS:
        row[_good(limit)] = sum(1e3 * one.latency <= limit for one in done) / seconds
    first = [one.first for one in done if one.first is not None]
    if first:
        row["first_p50_ms"], row["first_p95_ms"] = percentiles(first, (50, 95)).values()
        shares = [one.first / one.latency for one in done if one.first is not None]
        row["first, share of the whole"] = sum(shares) / len(shares)
    row["latest_ms"] = 1e3 * max(one.latency for one in answers)
    row["lag_ms"] = 1e3 * max(one.lag for one in answers)
    # by status, "0": no answer at all
    row |= {
        f"status {status}": number
        for status, number in sorted(Counter(one.status for one in answers).items())
        if status != 200
    }
    return row


def _held(rows: Sequence[dict], limit: float) -> float:
    """The rate at which p99 reaches a limit, between measured rates on logarithms of p99; 0: never below."""
    before: dict | None = None
    for row in rows:
        if row["p99_ms"] > limit:
            if before is None:
                return 0.0
            low, high = numpy.log([before["p99_ms"], row["p99_ms"]])
            share = (numpy.log(limit) - low) / (high - low)
            return float(before["req/s"] + share * (row["req/s"] - before["req/s"]))
        # who refuses some is quick with the others
        if any(name.startswith("status") for name in row):
            break
        before = row
    return float(before["req/s"]) if before else 0.0
