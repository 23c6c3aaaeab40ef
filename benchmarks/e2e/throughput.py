"""The methods of Yang et al. 2020 and ``transformers.generate`` on the same lines and weights."""

from __future__ import annotations

import statistics
import time

from benchmarks.bench_streaming import methods
from benchmarks.bench_translate import Ours
from benchmarks.corpus import Corpus
from benchmarks.e2e.meter import GIGA, Meter
from benchmarks.e2e.pair import GENERATE, Pair
from benchmarks.e2e.task import Task

# what generate takes at a larger width on a CPU tells nothing new and lasts for minutes
MAX_GENERATE_WIDTH = {"cpu": 10, "cuda": 128}


def tasks(pair: Pair, data: Corpus, width: int, n: int, meter: Meter) -> list[Task]:
    part = f"{pair.name}-{width}"
    names = [*methods(width, n)]
    if width <= MAX_GENERATE_WIDTH[pair.device]:
        names.append(GENERATE)
    return [
        Task(
            {"part": part, "system": name},
            Throughput(pair, name, data, width, n, meter),
            repeats=True,
        )
        for name in names
    ]


class Throughput:
    """Every call translates all lines; seconds are the median of the calls so far."""

    def __init__(
        self, pair: Pair, name: str, data: Corpus, width: int, n: int, meter: Meter
    ) -> None:
        self._pair, self._name, self._data, self._meter = pair, name, data, meter
        self._width, self._n = width, n
        self._seconds: list[float] = []
        self._cpu_seconds: list[float] = []
        self._constants: dict = {}

    def __call__(self) -> dict:
        meter, sources = self._meter, self._data.sources
        translate = self._pair.system(self._name, self._width, self._n)
        held = meter.allocated_bytes()
        meter.restart_peak()
        # a GPU compiles and captures what the first batch needs; a CPU needs no more than its code
        translate(sources[: self._n if meter.is_cuda else 4])
        joules = meter.joules()
        start, cpu_start = time.perf_counter(), time.process_time()
        outputs = translate(sources)
        self._seconds.append(time.perf_counter() - start)
        self._cpu_seconds.append(time.process_time() - cpu_start)
        if not self._constants:
            self._constants = self._measured_once(translate, outputs, held, joules)
        seconds = statistics.median(self._seconds)
        return {
            "lines": len(sources),
            "n": self._n,
            "seconds": seconds,
            # of all threads; while they do not spin, other programs change it less than they do seconds
            "cpu_seconds": statistics.median(self._cpu_seconds),
            "repeats": len(self._seconds),
            "lines/s": len(sources) / seconds,
            **self._constants,
        }

    def _measured_once(self, translate, outputs, held: int, joules: float | None) -> dict:
        numbers: dict = {"BLEU": self._data.bleu(outputs)}
        if joules is not None:
            numbers["joules/line"] = (self._meter.joules() - joules) / len(outputs)
        is_ours = isinstance(translate, Ours)
        if self._meter.is_cuda:
            working = self._meter.peak_bytes() - held
            numbers["weights_gb"] = self._pair.weight_bytes["ours" if is_ours else "theirs"] / GIGA
            numbers["peak_gb"] = numbers["weights_gb"] + working / GIGA
        if is_ours:
            stats = translate.decoder.stats
            numbers |= {
                "steps": stats.steps,
                "expansions": stats.expansions,
                "exp/step": stats.expansions_per_step,
                "refills": stats.refills,
                "pages": stats.pages,
                "phase_seconds": {k: round(v, 4) for k, v in stats.phase_seconds.items()},
            }
        return numbers
