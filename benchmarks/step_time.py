"""The cost of one step at a length: Figure 2 of Yang et al. 2020, a token tree beside padded caches.

Searches that cannot end before T tokens, nor go on after them, are timed for several T; what two of
them differ by, divided by the tokens between, is the mean time of a step there. Nothing looks into
the loop, so a system may run as it likes.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import pybeam
from benchmarks import peers
from benchmarks.gpu import expected
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.translation import NORMALISED, Decoding

# threads that wait for others spin, and count as CPU time; of one alone, that is all that is kept
ALONE = "pybeam, one thread"
ON_THE_WALL = ("step µs", "length", "step_ms")

Until = Callable[[int], peers.Translate]  # a search whose hypotheses all end at so many tokens


def tasks(setup: Setup, network: str) -> list[Task]:
    width, n = setup.size.widths[0], setup.size.step_n
    networks = setup.networks

    def ours(length: int) -> peers.Translate:
        options = dict(min_length=length - 1, max_length=length, scoring=NORMALISED)
        fixed = pybeam.fixed_beam(width, **options)
        return Decoding(networks.ours(network), fixed, pybeam.Batch(n))

    def theirs(length: int) -> peers.Translate:
        model = networks.transformers(network)
        return peers.transformers_beam(model, width, n, length, min_length=length)

    is_like_gpu = setup.device == "cuda" or setup.is_tiny

    def forecast() -> expected.Expected:
        sizes = expected.network_of(networks.ours(network).config)
        return expected.of_step(sizes, n, width, setup.size.dtype)

    systems = {"pybeam": ours, peers.GENERATE: theirs}
    if not is_like_gpu:
        systems[ALONE] = ours

    def measure(name: str, until: Until) -> Callable[[], dict]:
        is_forecast = is_like_gpu and name == "pybeam"
        lengths, forecasts = setup.size.step_lengths, forecast if is_forecast else None
        steps = StepTime(until, lambda: setup.corpus().sources[:n], width, lengths, forecasts)
        if name != ALONE:
            return steps
        return lambda: {k: v for k, v in steps().items() if k not in ON_THE_WALL}

    return [
        Task(
            f"{network}-steps",
            name,
            measure(name, until),
            setup.size.repeats,
            1 if name == ALONE else None,
        )
        for name, until in systems.items()
    ]


class StepTime:
    """Every call times all lengths; the least time of each so far counts."""

    def __init__(
        self,
        until: Until,
        sources: Callable[[], list[list[int]]],
        width: int,
        lengths: tuple[int, ...],
        forecast: Callable[[], expected.Expected] | None = None,
    ) -> None:
        self._until, self._sources, self._width = until, sources, width
        self._forecast = forecast
        self._searches: dict[int, peers.Translate] = {}
        self._seconds: dict[int, list[tuple[float, float]]] = {length: [] for length in lengths}

    def __call__(self) -> dict:
        sources = self._sources()
        for length, seconds in self._seconds.items():
            if length not in self._searches:
                self._searches[length] = self._until(length)
                self._searches[length](sources)
            start, cpu_start = time.perf_counter(), time.process_time()
            self._searches[length](sources)
            cpu = time.process_time() - cpu_start
            seconds.append((time.perf_counter() - start, cpu))
        step_ms, cpu_ms = (self._step_ms(clock) for clock in range(2))
        lengths = [(first + last) / 2 for first, last in itertools.pairwise(self._seconds)]
        # the forecast is that of a step at a middling length
        us = 1e3 * statistics.median(step_ms)
        return {
            **(self._forecast().columns(us) if self._forecast else {}),
            "n": len(sources),
            "width": self._width,
            "repeats": len(seconds),
            "step µs": us,
            "length": lengths,
            "step_ms": step_ms,
            # of all threads, which other programs change less
            **{f"cpu ms at {at:g}": ms for at, ms in zip(lengths, cpu_ms, strict=True)},
        }

    def _step_ms(self, clock: int) -> list[float]:
        """The differences of lengths, by the least time of each on one of the two clocks."""
        least = [(length, min(t[clock] for t in turns)) for length, turns in self._seconds.items()]
        pairs = itertools.pairwise(least)
        return [1e3 * (b - a) / (last - first) for (first, a), (last, b) in pairs]
