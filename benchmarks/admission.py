"""Deadlines under load: which refusals were wrong, which answers were late, and by how much.

The first rows are of a simulation (`simulated_service.py`) of two engines. Its requests are as long as lines
of the corpus, and take as many steps as their translations. The other rows are of a service that runs here,
whose callers are in its process. A load is a share of what the engines can do. Some of the requests that are
to be refused begin all the same, at once: the share of them that is done in time is that of false refusals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy
import torch

import pybeam
from benchmarks.latency import arrivals
from benchmarks.setup import Setup
from benchmarks.simulated_service import (
    WIDTH,
    Costs,
    Counts,
    Lines,
    Sent,
    Simulation,
    audited,
    capacity,
)
from benchmarks.tasks import Task
from benchmarks.translation import MAX_LENGTH, NORMALISED
from pybeam.serving import DeadlineExceeded

ENGINES = 2
LINES = 300
LOADS = (0.5, 0.9, 1.2, 2.0)
TIMEOUTS = (0.3, 0.5, 1.0)
PATTERNS = ("poisson", "bursts", "days")
SIMULATED_SECONDS, RUN_SECONDS = 60.0, 20.0
RUN_LOADS, RUN_TIMEOUT = (0.8, 2.0), 0.5


def admission(setup: Setup) -> Iterator[list[Task]]:
    """Refusals that were wrong and answers that were late, in a simulation and in a run."""
    bench = Bench(setup)
    timeouts = TIMEOUTS[1:2] if setup.is_tiny else TIMEOUTS
    for load in LOADS[1:2] if setup.is_tiny else LOADS:
        yield [
            Task(
                "simulated",
                f"{pattern}, {timeout:g} s",
                partial(bench.simulated, pattern, load, timeout),
                more={"load": load},
            )
            for pattern in PATTERNS
            for timeout in timeouts
        ]
    for load in RUN_LOADS[:1] if setup.is_tiny else RUN_LOADS:
        yield [
            Task("run", kind, partial(bench.run, load, kind == "processes"), more={"load": load})
            for kind in ("threads", "processes")
        ]


class Bench:
    """The example translator in int8, and the lines that are asked for."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    @cached_property
    def _decoder(self) -> pybeam.Decoder:
        search = pybeam.fixed_beam(WIDTH, max_length=MAX_LENGTH, scoring=NORMALISED)
        model = self._setup.networks.ours("example", "int8")
        return pybeam.Decoder(model, search, pybeam.Fifo(64))

    @cached_property
    def _sources(self) -> list[list[int]]:
        return self._setup.corpus().spread(8 if self._setup.is_tiny else LINES).sources

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        results = self._decoder.decode(self._sources)
        return [
            (len(source), result.steps)
            for source, result in zip(self._sources, results, strict=True)
        ]

    def simulated(self, pattern: str, load: float, timeout: float) -> dict:
        """Counts of a simulation, and who is done that comes again when it is told to."""
        costs, seconds = Costs.measured(), 3.0 if self._setup.is_tiny else SIMULATED_SECONDS
        rate = load * ENGINES * capacity(costs, self.lengths)
        requests = getattr(Lines(self.lengths), pattern)(rate, seconds, timeout)
        simulation = Simulation(costs, ENGINES, retries=True)
        counts = simulation.run(requests)
        again = Counts.of(simulation.again)
        number = again.made + again.late + again.refused
        return (
            {"req/s": rate, "timeout": timeout}
            | _facts(counts)
            | {
                "come again": number,
                "made then": again.made / number if number else math.nan,
            }
        )

    @cached_property
    def _answered(self) -> float:
        """Lines per second of as many engines as the service has, each with one thread."""
        start = time.perf_counter()
        with pybeam.Service(self._decoder, engines=ENGINES, max_waiting=10**6) as service:
            for future in [service.submit(source) for source in self._sources]:
                future.result()
        return len(self._sources) / (time.perf_counter() - start)

    def run(self, load: float, processes: bool) -> dict:
        """Poisson arrivals at a service."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            rate = load * self._answered
            seconds = 1.0 if self._setup.is_tiny else RUN_SECONDS
            due = arrivals(rate, max(10, int(rate * seconds)), 0)
            with audited():
                service = pybeam.Service(
                    self._decoder, engines=ENGINES, processes=processes, max_waiting=10**6
                )
            with service:
                sent = _asked(service, self._sources, due)
        finally:
            torch.set_num_threads(threads)
        late = [one.answered - one.at - one.timeout for one in sent if one.end == "late"]
        return (
            {"req/s": rate, "timeout": RUN_TIMEOUT}
            | _facts(Counts.of(sent))
            | {"latest_ms": 1e3 * max(late, default=0.0)}
        )


def _asked(service: pybeam.Service, sources: list[list[int]], due: numpy.ndarray) -> list[Sent]:
    """Ask for a source at each of these times, in seconds from now. Returns what became of them."""
    chosen = numpy.random.default_rng(0).integers(len(sources), size=len(due))
    deadlines: Any = service._groups.of(None).queue.deadlines
    start, sent, futures = time.monotonic(), [], []

    def note(one: Sent) -> None:
        one.answered = time.monotonic()

    for place, moment in zip(chosen, due, strict=True):
        time.sleep(max(0.0, start + moment - time.monotonic()))
        one = Sent(time.monotonic(), RUN_TIMEOUT, len(sources[place]), 0)
        future = service.submit(sources[place], timeout=RUN_TIMEOUT)
        future.add_done_callback(lambda _, one=one: note(one))
        sent.append(one)
        futures.append(future)
    for index, (one, future) in enumerate(zip(sent, futures, strict=True)):
        error = future.exception()
        one.is_audited = index in deadlines.audited
        assert error is None or isinstance(error, DeadlineExceeded), error
        is_late = one.answered >= one.at + one.timeout
        one.end = "late" if is_late else "refused" if error else "made"
    return sent


def _facts(counts: Counts) -> dict:
    return {
        "requests": counts.number,
        "made": counts.made,
        "refused": counts.refused,
        "late": counts.late,
        "false refusals %": 100 * counts.false_refusals,
        "audited": counts.audited,
        "late %": 100 * counts.late_ones,
    }
