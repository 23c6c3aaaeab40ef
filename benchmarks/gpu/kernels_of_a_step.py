"""Every kernel of a step on a GPU, in the order of the launches: its time, its bytes, its share of the limit.

    python -m benchmarks.gpu.kernels_of_a_step [--only "widened, 1x5" ...] [--minutes 0.4] [--dry-run]

A step is replayed as a CUDA graph, as steps follow one another and behind a flush of the L2. Then its kernels
are launched one by one under torch.profiler, and each has the median of its durations. A row stands for all
kernels of a role, beside their forecast; the row "step" lists them one by one. Rows go to gpu-step.json, in
$OUT if that is set, else in benchmarks/results/<gpu>/. The tool fails if a kernel of narrow beams takes more
than its budget (`roles.BUDGETS_US`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks import decoders
from benchmarks.gpu import expected, forecast
from benchmarks.gpu.expected import significant
from benchmarks.gpu.forecast import Part
from benchmarks.gpu.one_step import OneStep
from benchmarks.gpu.roles import BUDGETS_US
from benchmarks.journal import Journal, results_folder, table
from benchmarks.kernels.bench_step import TINY, Search
from benchmarks.kernels.clock import Replay, median_us, replay_us
from pybeam.inspect.gpu_kernels import ROLES, Kernel, parts_of, short_name
from pybeam.inspect.trace import KERNEL, OPERATOR, read_trace
from pybeam.inspect.work import whole

# network, sources, width; what is worth most first
CASES = [
    *(("example", 64, 5), ("widened", 64, 5), ("widened", 1, 5), ("example", 1, 5)),
    *(("widened", 64, 50), ("example", 64, 50)),
    *((name, num_sources, 5) for name in decoders.SHAPES for num_sources in (1, 64)),
]
STEP, REPEATS = "step", 7
# beams whose kernels have budgets
NARROW = 5


class Times(NamedTuple):
    """Microseconds of a whole step as a graph, as steps follow one another and behind a flush of the L2."""

    warm: float
    cold: float
    num_nodes: int | None


def whole_step(step: OneStep, device: torch.device) -> Times:
    """On a CPU, for trials, by the clock of the host."""
    if device.type == "cpu":
        us = median_us([step] * 2, device)
        return Times(us, us, None)
    replay = Replay([step], step.restore)
    warm, cold = (replay_us(replay, is_cold) for is_cold in (False, True))
    return Times(warm, cold, replay.num_nodes)


def profiled(step: OneStep, device: torch.device) -> list[Kernel]:
    """The kernels of a step in order, launched one by one; on a CPU, for trials, its operators."""
    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    wait = torch.cuda.synchronize if is_cuda else lambda: None
    step.restore()
    step()
    with profile(activities=activities, acc_events=True) as recorded:
        for _ in range(REPEATS):
            step.restore()
            wait()
            with record_function(STEP):
                step()
                wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        return kernels_of(read_trace(path), KERNEL if is_cuda else OPERATOR)


def kernels_of(events: Sequence[dict], kinds: set[str]) -> list[Kernel]:
    """The kernels within each range `STEP`, of those steps that have as many as the last one."""
    ranges = [e for e in events if e["name"] == STEP and e.get("cat") == "user_annotation"]
    found = sorted((e for e in events if e.get("cat") in kinds), key=lambda event: event["ts"])
    steps = [
        [e for e in found if own["ts"] <= e["ts"] <= own["ts"] + own["dur"]]
        for own in sorted(ranges, key=lambda event: event["ts"])
    ]
    same = [step for step in steps if len(step) == len(steps[-1])]
    return [
        Kernel(events[0]["name"], statistics.median(event["dur"] for event in events))
        for events in zip(*same, strict=True)
    ]


def listed(kernels: Sequence[Kernel], own: Sequence[Part], dtype: str) -> list[dict]:
    """A row for each kernel; bytes and products are those that it must read, write and do."""
    rows = []
    for kernel, part in zip(kernels, parts_of(kernels, own), strict=True):
        row = {"kernel": short_name(kernel.name), "role": kernel.role, "µs": round(kernel.us, 2)}
        if part is not None:
            limit = part.work.us(expected.machine(), dtype)
            row |= {"part": part.name, "bytes": round(part.work.num_bytes)}
            row |= {"limit µs": significant(limit), "of limit": significant(limit / kernel.us)}
        rows.append(row)
    return rows


def rows_of(case: str, times: Times, kernels: Sequence[Kernel], sizes: tuple) -> Iterator[dict]:
    """The whole step with its kernels, and a row for each role; `sizes` are those of `forecast.parts`."""
    network, sources, beam, dtype = sizes
    machine, own = expected.machine(), forecast.parts(*sizes)
    launched = forecast.parts(*sizes, launched=True)
    counted = Counter(kernel.role for kernel in kernels)
    books = forecast.books_us(network, sources)
    foreseen = forecast.by_role(machine, launched, dtype, counted, books)
    us = {role: sum(k.us for k in kernels if k.role == role) for role in counted}
    between = times.warm - sum(us.values())
    limit = whole(own).us(machine, dtype)
    yield {
        "case": case,
        "system": STEP,
        "kernels": len(kernels),
        "µs": round(times.warm, 1),
        "cold L2, µs": round(times.cold, 1),
        "nodes": times.num_nodes,
        **_beside(times.warm, limit, sum(foreseen.values())),
        "dtype": dtype,
        "network": asdict(network),
        "sources": sources,
        "width": beam,
        "listed": listed(kernels, own, dtype),
    }
    for role in ROLES:
        if counted[role]:
            parts = [part for part in own if part.role == role]
            limit = sum(part.work.us(machine, dtype) for part in parts)
            row = {"case": case, "system": role, "kernels": counted[role]}
            yield row | {"µs": round(us[role], 1), **_beside(us[role], limit, foreseen[role])}
    row = {"case": case, "system": "between", "kernels": len(kernels), "µs": round(between, 1)}
    yield row | _beside(between, 0.0, foreseen["between"])


def _beside(us: float, limit: float, foreseen: float) -> dict:
    return {
        "limit, µs": significant(limit),
        "share of the limit, %": round(100 * limit / us) if us > 0 else None,
        "forecast, µs": significant(foreseen),
        "forecast is off by, %": round(100 * (foreseen / us - 1)) if us > 0 else None,
    }


def over_budget(row: dict) -> list[str]:
    """The kernels of a step of narrow beams that take more than their budget, with their times."""
    if row["width"] > NARROW:
        return []
    return [
        f"{one['kernel']} takes {one['µs']} µs, and its budget is {BUDGETS_US[one['kernel']]}"
        for one in row["listed"]
        if one["µs"] > BUDGETS_US.get(one["kernel"], float("inf"))
    ]


def measured(search: Search) -> Iterator[dict]:
    """The rows of one case."""
    step = search.step("native" if search.device.type == "cpu" else "triton")
    network = expected.network_of(search.model.config)
    sizes = network, search.num_beams, search.width, search.dtype
    times, kernels = whole_step(step, search.device), profiled(step, search.device)
    yield from rows_of(_name(search), times, kernels, sizes)


def _name(search: Search) -> str:
    return f"{search.network}, {search.num_beams}x{search.width}"


def searches(is_tiny: bool) -> list[Search]:
    if is_tiny:
        return [Search(TINY, "float32", torch.device("cpu"), 2, 3, "fixed_beam")]
    device = torch.device("cuda")
    return [
        Search(name, "bfloat16", device, num, width, "fixed_beam") for name, num, width in CASES
    ]


def main() -> None:
    options = _options()
    keeps = not options.dry_run or "OUT" in os.environ
    with nullcontext() if keeps else tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if scratch else results_folder("cpu" if options.dry_run else "cuda")
        journal = Journal(folder, "gpu-step", ("case", "system"), minutes=options.minutes)
        slow = measure(journal, options)
    sys.exit("\n".join(slow) or None)


def measure(journal: Journal, options: argparse.Namespace) -> list[str]:
    """Measure all cases. Returns what is over its budget."""
    slow = []
    for search in searches(options.dry_run):
        name = _name(search)
        if options.only and name not in options.only:
            continue
        with torch.inference_mode():
            found = journal.attempt(
                {"case": name, "system": STEP}, partial(_first, search, journal)
            )
        if found is None:
            continue
        slow += [f"{name}: {line}" for line in over_budget(found)]
        rows = [row for row in journal.own_rows if row["case"] == name]
        journal.say(f"\n{name}\n{table(found['listed'])}\n\n{table(rows)}")
    journal.finish()
    return slow


def _first(search: Search, journal: Journal) -> dict:
    """The row of the whole step; those of its roles are added on the way."""
    whole, *others = measured(search)
    for row in others:
        journal.add(row)
    return whole


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [f"{name}, {num}x{width}" for name, num, width in CASES]
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="CASE", help=f"some of {'; '.join(names)}"
    )
    parser.add_argument("--minutes", type=float, help="start no case after so long")
    parser.add_argument(
        "--dry-run", action="store_true", help="a tiny model on the CPU; keeps no file"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
