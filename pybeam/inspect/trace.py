"""Reads a chrome trace of one decode: the time of each phase, and how much of it is computation.

Events are the dictionaries that `torch.profiler` writes for "complete" events (``ph`` is ``X``), with
``ts`` (start) and ``dur`` in microseconds. Operators compute on a CPU, kernels and copies on a GPU. Time
in which at least one of them runs is *busy*; the rest is the *gap*.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pybeam.engine.stats import PHASES, RANGE_PREFIX

# the range around all phases
DECODE = RANGE_PREFIX + "decode"
# the name for time within the decode that is in no phase
OUTSIDE = "outside"

OPERATOR = {"cpu_op"}
NATIVE_PREFIX = "native::"  # ranges of the native programs, which are operators in all but the call
KERNEL = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH = {"cuda_runtime", "cuda_driver"}


class Interval(NamedTuple):
    """Time from `start` to `end`, in microseconds, that counts for a phase."""

    start: float
    end: float
    phase: str


class Computation(NamedTuple):
    """An operator or a kernel: the time of all its calls, without that of operators it calls."""

    name: str
    self_us: float
    calls: int


@dataclass(frozen=True)
class Breakdown:
    """The time of one decode by phase, in microseconds; `computations` are sorted, most time first."""

    host_us: dict[str, float]
    busy_us: dict[str, float]
    computations: list[Computation]


def read_trace(path: Path) -> list[dict]:
    """Read the complete events of a chrome trace. Calls of native programs count as operators."""
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    events = [event for event in events if event["ph"] == "X"]
    for event in events:
        if event["name"].startswith(NATIVE_PREFIX):
            event["cat"] = "cpu_op"
    return events


def break_down(events: list[dict], *, on_gpu: bool) -> Breakdown:
    """The time within the range `DECODE`, by phase.

    A kernel counts for the phase that launched it, whenever it runs.

    Raises ValueError if there is not exactly one such range, or if there is no kernel on a GPU.
    """
    ranges = {name: _of(events, {"user_annotation"}, RANGE_PREFIX + name) for name in PHASES}
    decodes = _of(events, {"user_annotation"}, DECODE)
    if len(decodes) != 1:
        raise ValueError(f"a trace must have one range {DECODE!r}, but has {len(decodes)}")
    start, end = _span(decodes[0])
    phases = sorted(Interval(*_span(e), name) for name, found in ranges.items() for e in found)

    host_us = {name: sum(e["dur"] for e in found) for name, found in ranges.items()}
    host_us[OUTSIDE] = end - start - sum(host_us.values())
    computing = _of(events, KERNEL if on_gpu else OPERATOR)
    computing = [event for event in computing if start <= event["ts"] <= end]
    if on_gpu and not computing:
        raise ValueError(
            "a trace from a GPU must have kernels, but has none; the profiler needs CUPTI, and that no "
            "other profiler is attached"
        )
    if on_gpu:
        launched = _launch_times(events)
        began = [launched.get(_correlation(event), -math.inf) for event in computing]
    else:
        began = [event["ts"] for event in computing]
    busy_us = dict.fromkeys(host_us, 0.0) | covered(
        Interval(*_span(event), phase_at(phases, time))
        for event, time in zip(computing, began, strict=True)
    )
    return Breakdown(host_us, busy_us, self_times(computing))


def launches_by_phase(events: list[dict]) -> Iterator[tuple[str, list[dict]]]:
    """Yield the phases of a decode in their order, and the kernels and copies that each has launched."""
    ranges = [
        (e, name) for name in PHASES for e in _of(events, {"user_annotation"}, RANGE_PREFIX + name)
    ]
    phases = sorted(Interval(*_span(event), name) for event, name in ranges)
    times = _launch_times(events)
    launched: dict[int, list[dict]] = defaultdict(list)
    for event in _of(events, KERNEL):
        began = times.get(_correlation(event), -math.inf)
        i = bisect_right(phases, began, key=lambda interval: interval.start) - 1
        if i >= 0 and began <= phases[i].end:
            launched[i].append(event)
    for i, phase in enumerate(phases):
        yield phase.phase, launched[i]


def covered(intervals: Iterable[Interval]) -> dict[str, float]:
    """Count the microseconds that the intervals cover, by phase.

    Time that several intervals cover counts once, for the one that began first.
    """
    total: dict[str, float] = defaultdict(float)
    until = -math.inf
    for start, end, phase in sorted(intervals):
        total[phase] += max(0.0, end - max(start, until))
        until = max(until, end)
    return dict(total)


def phase_at(phases: list[Interval], time: float) -> str:
    """The phase at that time; `phases` must be sorted and must not overlap."""
    i = bisect_right(phases, time, key=lambda interval: interval.start) - 1
    return phases[i].phase if i >= 0 and time <= phases[i].end else OUTSIDE


def self_times(events: list[dict]) -> list[Computation]:
    """The time of every operator without that of the operators it calls, most time first."""
    self_us: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    open_by_thread: dict[object, list[tuple[float, str]]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        start, end = _span(event)
        name, callers = event["name"], open_by_thread[event["pid"], event["tid"]]
        while callers and callers[-1][0] <= start:
            callers.pop()
        if callers:
            self_us[callers[-1][1]] -= event["dur"]
        self_us[name] += event["dur"]
        calls[name] += 1
        callers.append((end, name))
    names = sorted(self_us, key=lambda name: -self_us[name])
    return [Computation(name, self_us[name], calls[name]) for name in names]


def _of(events: list[dict], categories: set[str], name: str | None = None) -> list[dict]:
    return [e for e in events if e.get("cat") in categories and name in (None, e["name"])]


def _span(event: dict) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def _launch_times(events: list[dict]) -> dict[int | None, float]:
    """When the host launched what has this number."""
    return {_correlation(event): event["ts"] for event in _of(events, LAUNCH)}


def _correlation(event: dict) -> int | None:
    """The number that a kernel shares with the call that launched it."""
    return event.get("args", {}).get("correlation")
