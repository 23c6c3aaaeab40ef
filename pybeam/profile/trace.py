"""What a chrome trace says about one decode: time per phase, and how much of it anything computes.

Events are dictionaries as `torch.profiler` writes them, "complete" ones (``ph`` is ``X``), with ``ts``
(start) and ``dur`` in microseconds. What computes is an operator on a CPU and a kernel or copy on a
GPU; time that it covers is *busy*, the rest is the *gap*.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pybeam.engine.stats import PHASES, RANGE_PREFIX

DECODE = RANGE_PREFIX + "decode"  # the range around all phases
OUTSIDE = "outside"  # in the decode, but in no phase

OPERATOR = {"cpu_op"}
KERNEL = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH = {"cuda_runtime", "cuda_driver"}


class Interval(NamedTuple):
    """From `start` to `end`, in microseconds, on behalf of a phase."""

    start: float
    end: float
    phase: str


class Computation(NamedTuple):
    """An operator or a kernel, over all its calls."""

    name: str
    self_us: float  # without what it calls
    calls: int


@dataclass(frozen=True)
class Breakdown:
    """One decode, in microseconds by phase; `OUTSIDE` is what is in none."""

    host_us: dict[str, float]
    busy_us: dict[str, float]
    computations: list[Computation]  # most self time first


def read_trace(path: Path) -> list[dict]:
    """The complete events of a chrome trace."""
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    return [event for event in events if event["ph"] == "X"]


def break_down(events: list[dict], *, on_gpu: bool) -> Breakdown:
    """Time of the one range `DECODE` in these events, by phase.

    A kernel counts for the phase that launched it, whenever it runs.

    Raises ValueError if there is not exactly one such range, or not one kernel on a GPU.
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
        launched = {_correlation(event): event["ts"] for event in _of(events, LAUNCH)}
        began = [launched.get(_correlation(event), -math.inf) for event in computing]
    else:
        began = [event["ts"] for event in computing]
    busy_us = dict.fromkeys(host_us, 0.0) | covered(
        Interval(*_span(event), phase_at(phases, time))
        for event, time in zip(computing, began, strict=True)
    )
    return Breakdown(host_us, busy_us, self_times(computing))


def covered(intervals: Iterable[Interval]) -> dict[str, float]:
    """Microseconds in which at least one interval is open, by phase; none is counted twice.

    Where intervals overlap, the time belongs to the one that began first.
    """
    total: dict[str, float] = defaultdict(float)
    until = -math.inf
    for start, end, phase in sorted(intervals):
        total[phase] += max(0.0, end - max(start, until))
        until = max(until, end)
    return dict(total)


def phase_at(phases: list[Interval], time: float) -> str:
    """The phase that is open then; `phases` are sorted and do not overlap."""
    i = bisect_right(phases, time, key=lambda interval: interval.start) - 1
    return phases[i].phase if i >= 0 and time <= phases[i].end else OUTSIDE


def self_times(events: list[dict]) -> list[Computation]:
    """Time of every operator without that of those it calls, by name; most first."""
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


def _correlation(event: dict) -> int | None:
    """What a kernel has in common with the call that launched it."""
    return event.get("args", {}).get("correlation")
