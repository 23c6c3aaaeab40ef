"""`measure`: where the time of a step goes, and that as a dictionary and as a table for people."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pybeam.decoder import Decoder
from pybeam.engine.stats import Stats
from pybeam.inspect.trace import DECODE, OUTSIDE, Breakdown, Computation, break_down, read_trace
from pybeam.text.counts import counted

NUM_COMPUTATIONS = 12
# names of C++ templates have hundreds of letters
MAX_NAME = 60

LEGEND = {
    False: """\
ms per step and its share are from runs without the profiler, operators from runs with it. The gap
is the time that no operator covers: Python and the way into operators. It lies between two figures:
  gap    time without the profiler less operators; too low, as operators that call others then hold
         what recording those costs, and off by the noise between two runs
  limit  time less operators, both under the profiler; too high, as recording slows Python""",
    True: """\
ms per step and its share are host time without the profiler; kernels are the time in which one runs
(or a copy) under it, by the phase that launched them. The host gap is the time in which none runs:
  gap    time without the profiler less kernels; off by the noise between two runs
  limit  time less kernels, both under the profiler; too high, as recording slows the host""",
}


@dataclass(frozen=True)
class PhaseTime:
    """The time of one phase, in milliseconds per step.

    Attributes:
        name: the phase.
        host_ms: time on the host, without the profiler.
        busy_ms: time in which an operator runs (CPU), or a kernel that the phase launched (GPU); with the
            profiler.
        host_ms_profiled: time on the host, with the profiler.
    """

    name: str
    host_ms: float
    busy_ms: float
    host_ms_profiled: float

    @property
    def gap_ms(self) -> float:
        """Host time without the profiler minus busy time with it. It is too low, and noisy."""
        return self.host_ms - self.busy_ms

    @property
    def gap_limit_ms(self) -> float:
        """Host time minus busy time, both with the profiler. It is too high: the profiler slows Python."""
        return self.host_ms_profiled - self.busy_ms


@dataclass(frozen=True)
class Profile:
    """The time of a step, by phase.

    The time of a step is the time of a decode, encoding included, divided by its steps. The fastest run
    counts, with and without the profiler, since other programs only add time.

    Attributes:
        on_gpu: whether the model is on a GPU.
        steps: steps of one decode.
        rows_per_step: hypotheses sent through the model in a step, on average.
        phases: those of `pybeam.engine.stats.PHASES`, then the time outside of them.
        computations: operators (CPU) or kernels (GPU), over all steps.
        seconds: time of every run without the profiler.
        seconds_profiled: time of every run with it.
    """

    on_gpu: bool
    steps: int
    rows_per_step: float
    phases: list[PhaseTime]
    computations: list[Computation]
    seconds: list[float]
    seconds_profiled: list[float]

    @property
    def step(self) -> PhaseTime:
        """The sum of all phases."""
        columns = ((p.host_ms, p.busy_ms, p.host_ms_profiled) for p in self.phases)
        return PhaseTime("step", *map(sum, zip(*columns, strict=True)))


def measure(
    decoder: Decoder,
    requests: Sequence[Any],
    *,
    warmup: int = 1,
    repeats: int = 5,
    trace: Path | None = None,
) -> Profile:
    """Decode the requests ``warmup + 2 * repeats`` times, every second time under `torch.profiler`.

    Args:
        decoder: decodes; afterwards its `stats` are those of the last run.
        requests: what it decodes, as `Decoder.decode` takes it.
        warmup: runs before those that count.
        repeats: runs that count, so many without and so many with the profiler.
        trace: the file to write the chrome trace of the fastest run to; None: none.

    Raises:
        DecodeError: a request failed.
        ValueError: no request needs a step.
    """
    # silences the profiler, which writes several messages in each run
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    for _ in range(warmup):
        decoder.decode(requests)
    on_gpu = decoder.model.device.type == "cuda"
    plain: list[Stats] = []
    profiled: list[Stats] = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "trace.json")
        for _ in range(repeats):
            decoder.decode(requests)
            plain.append(decoder.stats)
            if not decoder.stats.steps:
                raise ValueError("`requests` must have one that needs a step, but all are empty")
            recorded = recorded_decode(decoder, requests, on_gpu)
            profiled.append(decoder.stats)
            if decoder.stats is min(profiled, key=lambda stats: stats.seconds):
                recorded.export_chrome_trace(str(path))
        breakdown = break_down(read_trace(path), on_gpu=on_gpu)
        if trace is not None:
            shutil.copyfile(path, trace)
    fastest = min(plain, key=lambda stats: stats.seconds)
    return Profile(
        on_gpu,
        fastest.steps,
        fastest.expansions_per_step,
        _phases(fastest, breakdown),
        breakdown.computations,
        [stats.seconds for stats in plain],
        [stats.seconds for stats in profiled],
    )


def recorded_decode(decoder: Decoder, requests: Sequence[Any], on_gpu: bool) -> profile:
    """Decode under the profiler, within the range `DECODE`."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as recorded, record_function(DECODE):
        decoder.decode(requests)
        if on_gpu:
            torch.cuda.synchronize()
    return recorded


def _phases(stats: Stats, breakdown: Breakdown) -> list[PhaseTime]:
    outside = stats.seconds - sum(stats.phase_seconds.values())
    per_step = 1 / stats.steps
    return [
        PhaseTime(
            name,
            1e3 * seconds * per_step,
            1e-3 * breakdown.busy_us[name] * per_step,
            1e-3 * breakdown.host_us[name] * per_step,
        )
        for name, seconds in {**stats.phase_seconds, OUTSIDE: outside}.items()
    ]


def as_dict(profile: Profile) -> dict[str, Any]:
    """Return all numbers by name. Times are in ms per step, shares of a step without the profiler."""
    whole = profile.step
    return {
        "on_gpu": profile.on_gpu,
        "steps": profile.steps,
        "rows_per_step": profile.rows_per_step,
        "step": _numbers(whole, whole, has_gap=True),
        # on a GPU the kernels of a phase run while the host is in other phases
        "phases": {p.name: _numbers(p, whole, not profile.on_gpu) for p in profile.phases},
        "computations": [
            {
                "name": name,
                "ms": 1e-3 * self_us / profile.steps,
                "share": 1e-3 * self_us / profile.steps / whole.host_ms,
                "calls": calls / profile.steps,
            }
            for name, self_us, calls in profile.computations[:NUM_COMPUTATIONS]
        ],
        "seconds": profile.seconds,
        "seconds_profiled": profile.seconds_profiled,
    }


def _numbers(time: PhaseTime, whole: PhaseTime, has_gap: bool) -> dict[str, float]:
    numbers = {"ms": time.host_ms, "busy_ms": time.busy_ms}
    if has_gap:
        numbers |= {"gap_ms": time.gap_ms, "gap_limit_ms": time.gap_limit_ms}
    shares = {
        name.removesuffix("ms") + "share": value / whole.host_ms for name, value in numbers.items()
    }
    return {**numbers, **shares}


def as_text(numbers: dict[str, Any]) -> str:
    """A heading, the table of phases, the meaning of its columns, and the slowest operators or kernels."""
    rows_per_step = f"{numbers['rows_per_step']:.1f} rows per step"
    head = heading(numbers["run"], numbers["steps"], rows_per_step)
    computations = "kernels" if numbers["on_gpu"] else "operators"
    phases = [["phase", "ms per step", "share", computations, "share", "gap", "limit"]]
    for name, row in {**numbers["phases"], "step": numbers["step"]}.items():
        own = [f"{row['ms']:.3f}", percent(row["share"])]
        busy = [f"{row['busy_ms']:.3f}", percent(row["busy_share"])]
        shares = (row.get("gap_share"), row.get("gap_limit_share"))
        gaps = ["" if share is None else percent(share) for share in shares]
        phases.append([name, *own, *busy, *gaps])
    most = [[f"{computations}, most first", "ms per step", "share", "calls per step"]]
    most += [
        [row["name"][:MAX_NAME], f"{row['ms']:.3f}", percent(row["share"]), f"{row['calls']:.1f}"]
        for row in numbers["computations"]
    ]
    return "\n\n".join([head, columns(phases), LEGEND[numbers["on_gpu"]], columns(most)])


def heading(run: dict[str, Any], steps: int, *more: str) -> str:
    """Say what was decoded, and how often."""
    parts = ", ".join([counted(run["sources"], "source"), counted(steps, "step"), *more])
    threads, runs = counted(run["threads"], "thread"), counted(run["repeats"], "run")
    return f"{run['model']}, {threads}\n{parts}; fastest of {runs}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def columns(rows: list[list[str]]) -> str:
    """A table of words; the first column is aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0])]
            + [word.rjust(width) for word, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in rows
    )
