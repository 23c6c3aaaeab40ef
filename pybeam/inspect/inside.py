"""`measure_inside`: time, bytes and share of the limit of each kernel of a step, and that as a table.

On a CPU the C++ extension counts its kernels while it is asked to (`csrc/counters.h`). One that is not asked
looks at a flag for each kernel, and changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pybeam import backends
from pybeam.decoder import Decoder
from pybeam.engine.stats import Stats
from pybeam.inspect import limits
from pybeam.inspect.work import Work

# of a step; what encodes and closes sources lies around it
PHASES_OF_STEP = ("plan", "model", "select", "commit", "replay", "report")
# kernels whose weights or cells come from as far as all of them together stay; others read what the kernel
# before has just written
READS_FROM_AFAR = ("attention", "queries", "output", "inner", "logits", "products")

LEGEND = """\
Times are per step, from the fastest decode that was counted. The limit of a kernel is the least time that
this machine takes for its bytes and products, as torch reads and multiplies here. The rest is what no
kernel of ours covers: Python, operators of torch, and the way from one kernel to the next."""


@dataclass(frozen=True)
class KernelTime:
    """A kind of kernel in a step, on average.

    Attributes:
        name: what it computes.
        us: microseconds of a step.
        calls: of a step.
        work: of a step; zeros for kernels that read few numbers here and there.
        limit_us: the least microseconds for this work; 0: not known.
    """

    name: str
    us: float
    calls: float
    work: Work
    limit_us: float


@dataclass(frozen=True)
class Inside:
    """The kernels of a step, in their order.

    Attributes:
        steps: steps of one decode.
        step_us: microseconds of a step on the host's clock, counted.
        plain_us: the same without counting.
        kernels: see `KernelTime`.
    """

    steps: int
    step_us: float
    plain_us: float
    kernels: list[KernelTime]

    @property
    def rest_us(self) -> float:
        """Microseconds of a step that no kernel covers."""
        return self.step_us - sum(kernel.us for kernel in self.kernels)


def measure_inside(
    decoder: Decoder, requests: Sequence[Any], *, warmup: int = 1, repeats: int = 5
) -> Inside:
    """Decode the requests ``warmup + 2 * repeats`` times, every second time with counters.

    Args:
        decoder: decodes on a CPU; afterwards its `stats` are those of the last run.
        requests: what it decodes, as `Decoder.decode` takes it.
        warmup: runs before those that count.
        repeats: runs that count, so many without and so many with counters.

    Raises:
        DecodeError: a request failed.
        ValueError: no request needs a step, the model is not on a CPU, or the C++ extension is not there.
    """
    if decoder.model.device.type != "cpu":
        raise ValueError(f"`decoder` must be on a CPU, but is on {decoder.model.device}")
    backends.load("native")
    count = torch.ops.pybeam.count_kernels
    for _ in range(warmup):
        decoder.decode(requests)
    plain, counted = list[float](), list[tuple[float, Stats, str]]()
    for _ in range(repeats):
        decoder.decode(requests)
        if not decoder.stats.steps:
            raise ValueError("`requests` must have one that needs a step, but all are empty")
        plain.append(_step_us(decoder.stats))
        count(True)
        try:
            decoder.decode(requests)
        finally:
            lines = count(False)
        counted.append((_step_us(decoder.stats), decoder.stats, lines))
    step_us, stats, lines = min(counted, key=lambda run: run[0])
    dtype = getattr(decoder.model, "weight_dtype", torch.float32)
    kernels = kernels_of(lines, stats.steps, str(dtype).removeprefix("torch."))
    return Inside(stats.steps, step_us, min(plain), kernels)


def _step_us(stats: Stats) -> float:
    seconds = sum(stats.phase_seconds[name] for name in PHASES_OF_STEP)
    return 1e6 * seconds / max(1, stats.steps)


def kernels_of(lines: str, steps: int, dtype: str) -> list[KernelTime]:
    """The kernels that `count_kernels` has counted in so many steps, with weights of this dtype."""
    rows = [line.split(" ", 4) for line in lines.splitlines()]
    works = [Work(int(row[2]) / steps, int(row[3]) / steps) for row in rows]
    together = sum(work.num_bytes for work in works)
    found = []
    for (nanoseconds, calls, *_, name), work in zip(rows, works, strict=True):
        num_calls = int(calls) / steps
        held = together if any(word in name for word in READS_FROM_AFAR) else work.num_bytes
        held /= 1 if held == together else max(1.0, num_calls)
        limit = 0.0
        if work.num_bytes:
            limit = limits.seconds(work, held, dtype, torch.get_num_threads())
        found.append(KernelTime(name, int(nanoseconds) / 1e3 / steps, num_calls, work, 1e6 * limit))
    return found


def as_dict(inside: Inside) -> dict[str, Any]:
    """Return all numbers by name, those of a step."""
    return {
        "steps": inside.steps,
        "step_us": inside.step_us,
        "plain_us": inside.plain_us,
        "rest_us": inside.rest_us,
        "kernels": [
            {
                "name": kernel.name,
                "us": kernel.us,
                "share": kernel.us / inside.step_us,
                "calls": kernel.calls,
                "bytes": kernel.work.num_bytes,
                "flop": kernel.work.flop,
                "limit_us": kernel.limit_us,
                "of_limit": kernel.limit_us / kernel.us if kernel.us else 0.0,
            }
            for kernel in inside.kernels
        ],
    }


def as_text(numbers: dict[str, Any]) -> str:
    """A heading, the table of kernels, and the meaning of its columns."""
    from pybeam.inspect.profile import columns, heading, percent

    own = numbers["inside"]
    rows = [["kernel", "calls", "µs per step", "share", "kB", "Mflop", "limit µs", "of limit"]]
    for row in own["kernels"]:
        beside = [""] * 4
        if row["bytes"]:
            sizes = f"{row['bytes'] / 1e3:.1f}", f"{row['flop'] / 1e6:.2f}"
            beside = [*sizes, f"{row['limit_us']:.2f}", percent(row["of_limit"])]
        name = [row["name"], f"{row['calls']:.0f}"]
        rows.append([*name, f"{row['us']:.2f}", percent(row["share"]), *beside])
    rest, step = own["rest_us"], own["step_us"]
    rows.append(["rest", "", f"{rest:.2f}", percent(rest / step), *[""] * 4])
    limit = sum(row["limit_us"] for row in own["kernels"])
    rows.append(
        ["step", "", f"{step:.2f}", "100.0 %", "", "", f"{limit:.2f}", percent(limit / step)]
    )
    cost = f"Without counting a step takes {own['plain_us']:.2f} µs."
    return "\n\n".join([heading(numbers["run"], own["steps"]), columns(rows), f"{LEGEND}\n{cost}"])
