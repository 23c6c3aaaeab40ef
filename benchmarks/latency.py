"""Latency of requests that arrive one by one, whatever the server is doing: an open loop.

Arrivals are a Poisson process with a seed, the same for every schedule. A load is the rate of
arrivals as a share of the highest rate at which any of the schedules translates when all requests
are there at once. Latency runs from the moment a request is due until its result is handed out, so
a server that falls behind pays for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import cached_property

import numpy

import pybeam
from benchmarks.plans import EPSILON
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.translation import variable

SEED = 0
# steps; without it a source that is ahead waits for as long as others keep coming
MAX_WAIT = 8
# the first share of the requests meets a server that is not busy yet, and is not counted
WARM_UP = 0.1
PERCENTILES = (50, 95, 99)
# how often a saturated server is filled
SATURATED_FILLS = 8


def tasks(setup: Setup, network: str) -> list[Task]:
    width = setup.size.widths[0]
    n = setup.size.n_of(network, width)
    schedules = {
        f"Batch({n})": pybeam.Batch(n),
        f"Streaming({n})": pybeam.Streaming(n, EPSILON),
        f"Streaming({n}, max_wait={MAX_WAIT})": pybeam.Streaming(n, EPSILON, max_wait=MAX_WAIT),
        f"Fifo({n})": pybeam.Fifo(n),
    }
    server = Server(setup, network, width, schedules)
    return [
        Task(
            f"{network}-latency",
            name,
            lambda name=name, load=load: server.measure(name, load),
            more={"load": load},
        )
        for load in setup.size.loads
        for name in schedules
    ]


class Server:
    """A decoder for each schedule, all with the same model and search."""

    def __init__(
        self, setup: Setup, network: str, width: int, schedules: dict[str, pybeam.Schedule]
    ) -> None:
        self._setup, self._network, self._width = setup, network, width
        self._schedules = schedules

    @cached_property
    def _sources(self) -> list[list[int]]:
        return self._setup.corpus().sources

    @cached_property
    def _decoders(self) -> dict[str, pybeam.Decoder]:
        model = self._setup.networks.ours(self._network)
        return {
            name: pybeam.Decoder(model, variable(self._width), schedule)
            for name, schedule in self._schedules.items()
        }

    @cached_property
    def saturated(self) -> dict[str, float]:
        """Requests per second of every schedule when all have arrived."""
        rates = {}
        for name, decoder in self._decoders.items():
            n = self._schedules[name].n
            decoder.decode(self._sources[:n])
            sources = self._sources[: SATURATED_FILLS * n]
            start = time.perf_counter()
            decoder.decode(sources)
            rates[name] = len(sources) / (time.perf_counter() - start)
        return rates

    def measure(self, name: str, load: float) -> dict:
        rate = load * max(self.saturated.values())
        due = arrivals(rate, self._setup.size.num_requests, SEED)
        chosen = numpy.random.default_rng(SEED).integers(len(self._sources), size=len(due))
        latency = latencies(self._decoders[name], [self._sources[i] for i in chosen], due)
        return {
            "width": self._width,
            "requests": len(due),
            "arrivals/s": rate,
            "saturated/s": self.saturated[name],
            **percentiles(latency[int(WARM_UP * len(due)) :]),
        }


def arrivals(rate: float, number: int, seed: int) -> numpy.ndarray:
    """Seconds [number] at which requests are due; gaps are exponential with mean ``1 / rate``."""
    return numpy.random.default_rng(seed).exponential(1 / rate, number).cumsum()


def latencies(
    decoder: pybeam.Decoder, sources: list[list[int]], due: numpy.ndarray
) -> numpy.ndarray:
    """Seconds [number] from when each request is due until its result is handed out."""
    queue = pybeam.RequestQueue()
    is_over = threading.Event()
    start = time.perf_counter()

    def arrive() -> None:
        for source, moment in zip(sources, due, strict=True):
            # returns at once when the moment has passed, and when nobody listens any more
            is_over.wait(max(0.0, start + moment - time.perf_counter()))
            queue.put(source)
        queue.close()

    producer = threading.Thread(target=arrive)
    producer.start()
    latency = numpy.full(len(sources), numpy.nan)
    try:
        for result in decoder.stream(queue):
            if result.error:
                raise result.error
            latency[result.index] = time.perf_counter() - start - due[result.index]
    finally:
        is_over.set()
        producer.join()
    return latency


def percentiles(
    latency: Sequence[float] | numpy.ndarray, percents: tuple[int, ...] = PERCENTILES
) -> dict[str, float]:
    """Milliseconds within which so many percent of the requests were answered."""
    values = numpy.percentile(latency, percents)
    return {f"p{p}_ms": 1e3 * float(value) for p, value in zip(percents, values, strict=True)}
