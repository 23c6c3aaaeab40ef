"""`measure_inside`: time, bytes and share of the limit of each kernel of a step, and that as a table.

On a CPU the C++ extension counts its kernels while it is asked to (`csrc/counters.h`). One that is not asked
looks at a flag for each kernel, and changes no result. On a GPU the profiler times them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pybeam import backends
from pybeam.decoder import Decoder
from pybeam.engine.stats import Stats
from pybeam.inspect import gpu_kernels, limits
from pybeam.inspect.profile import MAX_NAME, columns, heading, percent, recorded_decode
from pybeam.inspect.trace import read_trace
from pybeam.inspect.work import UNSHARED_TOKENS, Machine, Part, StepRows, Work, parts
from pybeam.models.base import Model
from pybeam.request import Request

# of a step; what encodes and closes sources lies around it
PHASES_OF_STEP = ("plan", "model", "select", "commit", "replay", "report")
# kernels whose weights or cells come from as far as all of them together stay; others read what the kernel
# before has just written
READS_FROM_AFAR = ("attention", "queries", "output", "inner", "logits", "products")

LEGEND = {
    False: """\
Times are per step, from the fastest decode that was counted. The limit of a kernel is the least time that
this machine takes for its bytes and products, as torch reads and multiplies here. The rest is what no
kernel of ours covers: Python, operators of torch, and the way from one kernel to the next.
Without counting a step takes {:.2f} µs.""",
    True: """\
Times are medians under the profiler, over the steps that launch the most common kernels. A step lasts from
its first kernel to the end of its last one, and the rest is the time between kernels. Bytes and products
follow from the sizes of the network and from average rows and lengths. A limit is the least time for them at
the rates that the maker of this GPU publishes; it is left out where they are not known.
Without the profiler a step takes {:.2f} µs on the host's clock.""",
}


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
        step_us: microseconds of a step while they are timed, on the host's clock, or on the GPU's.
        plain_us: the same on the host's clock while nothing is timed.
        kernels: see `KernelTime`.
        on_gpu: whether the model is on a GPU.
    """

    steps: int
    step_us: float
    plain_us: float
    kernels: list[KernelTime]
    on_gpu: bool = False

    @property
    def rest_us(self) -> float:
        """Microseconds of a step that no kernel covers."""
        return self.step_us - sum(kernel.us for kernel in self.kernels)


def measure_inside(
    decoder: Decoder, requests: Sequence[Any], *, warmup: int = 1, repeats: int = 5
) -> Inside:
    """Decode the requests ``warmup + 2 * repeats`` times, every second time with counters.

    On a GPU the profiler is on in the last one of ``warmup + repeats + 1`` times.

    Args:
        decoder: decodes; afterwards its `stats` are those of the last run.
        requests: what it decodes, as `Decoder.decode` takes it.
        warmup: runs before those that count.
        repeats: runs that count, so many without and so many with counters.

    Raises:
        DecodeError: a request failed.
        ValueError: no request needs a step, or the C++ extension is not there on a CPU.
    """
    on_gpu = decoder.model.device.type == "cuda"
    if not on_gpu:
        backends.load("native")
    for _ in range(warmup):
        decoder.decode(requests)
    return (_on_gpu if on_gpu else _on_cpu)(decoder, requests, repeats)


def _plain_us(decoder: Decoder, requests: Sequence[Any]) -> float:
    """Microseconds of a step while nothing is timed. Raises ValueError if there is none."""
    decoder.decode(requests)
    if not decoder.stats.steps:
        raise ValueError("`requests` must have one that needs a step, but all are empty")
    return _step_us(decoder.stats)


def _on_cpu(decoder: Decoder, requests: Sequence[Any], repeats: int) -> Inside:
    count = torch.ops.pybeam.count_kernels
    plain, counted = list[float](), list[tuple[float, Stats, str]]()
    for _ in range(repeats):
        plain.append(_plain_us(decoder, requests))
        count(True)
        try:
            decoder.decode(requests)
        finally:
            lines = count(False)
        counted.append((_step_us(decoder.stats), decoder.stats, lines))
    step_us, stats, lines = min(counted, key=lambda run: run[0])
    kernels = kernels_of(lines, stats.steps, _dtype_of(decoder.model))
    return Inside(stats.steps, step_us, min(plain), kernels)


def _on_gpu(decoder: Decoder, requests: Sequence[Any], repeats: int) -> Inside:
    plain_us = min(_plain_us(decoder, requests) for _ in range(repeats))
    recorded = recorded_decode(decoder, requests, True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        step = gpu_kernels.median_step(read_trace(path))
    model, stats = decoder.model, decoder.stats
    dtype = _dtype_of(model)
    network = gpu_kernels.network_of(getattr(model, "config", None), dtype)
    own = [] if network is None else parts(network, _rows_of(decoder, requests), dtype)
    limit = partial(_gpu_limit_us, gpu_kernels.this_machine(), dtype)
    return Inside(stats.steps, step.us, plain_us, kernels_in(step, own, limit), on_gpu=True)


def _gpu_limit_us(machine: Machine | None, dtype: str, own: Work) -> float:
    return 0.0 if machine is None or not own.num_bytes else own.us(machine, dtype)


def _dtype_of(model: Model) -> str:
    dtype = getattr(model, "weight_dtype", getattr(model, "dtype", torch.float32))
    return str(dtype).removeprefix("torch.")


def _rows_of(decoder: Decoder, requests: Sequence[Any]) -> StepRows:
    """The average rows of the steps that were done last, half-way through their outputs."""
    model, stats = decoder.model, decoder.stats
    rows = stats.expansions_per_step
    beam = min(rows, decoder.algorithm.max_rows)
    sources = [one.source if isinstance(one, Request) else one for one in requests]
    lengths = [model.source_length(model.check(source)) for source in sources]
    own = stats.steps / 2 + UNSHARED_TOKENS * (beam - 1)
    source_keys = sum(lengths) / max(1, len(lengths))
    return StepRows(rows / beam, beam, rows, max(own, beam), source_keys)


def kernels_in(
    step: gpu_kernels.Step, own: Sequence[Part], limit_us: Callable[[Work], float]
) -> list[KernelTime]:
    """The kinds of kernels of a step, in the order in which it launches the first of each."""
    kinds: dict[str, list[tuple[float, Work]]] = {}
    for kernel, part in zip(step.kernels, gpu_kernels.parts_of(step.kernels, own), strict=True):
        name = gpu_kernels.short_name(kernel.name)
        done = Work(0, 0) if part is None else part.work
        label = name if part is None else f"{part.name} ({name})"
        kinds.setdefault(label, []).append((kernel.us, done))
    found = []
    for label, calls in kinds.items():
        done = Work(sum(one.num_bytes for _, one in calls), sum(one.flop for _, one in calls))
        limit = sum(limit_us(one) for _, one in calls)
        us = sum(us for us, _ in calls)
        found.append(KernelTime(label, us, len(calls), done, limit))
    return found


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
        is_afar = any(word in name for word in READS_FROM_AFAR)
        held = together if is_afar else work.num_bytes / max(1.0, num_calls)
        # a rate is measured for each power of two
        held = 1 << int(held).bit_length()
        limit = 0.0
        if work.num_bytes:
            limit = limits.seconds(work, held, dtype, torch.get_num_threads())
        found.append(KernelTime(name, int(nanoseconds) / 1e3 / steps, num_calls, work, 1e6 * limit))
    return found


def as_dict(inside: Inside) -> dict[str, Any]:
    """Return all numbers by name, those of a step."""
    return {
        "steps": inside.steps,
        "on_gpu": inside.on_gpu,
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
    own = numbers["inside"]
    rows = [["kernel", "calls", "µs per step", "share", "kB", "Mflop", "limit µs", "of limit"]]
    for row in own["kernels"]:
        beside = [""] * 4
        if row["bytes"]:
            sizes = f"{row['bytes'] / 1e3:.1f}", f"{row['flop'] / 1e6:.2f}"
            limits = [f"{row['limit_us']:.2f}", percent(row["of_limit"])]
            beside = [*sizes, *(limits if row["limit_us"] else ["", ""])]
        name = [row["name"][:MAX_NAME], f"{row['calls']:.0f}"]
        rows.append([*name, f"{row['us']:.2f}", percent(row["share"]), *beside])
    rest, step = own["rest_us"], own["step_us"]
    rows.append(["rest", "", f"{rest:.2f}", percent(rest / step), *[""] * 4])
    limit = sum(row["limit_us"] for row in own["kernels"])
    rows.append(
        ["step", "", f"{step:.2f}", "100.0 %", "", "", f"{limit:.2f}", percent(limit / step)]
    )
    legend = LEGEND[own["on_gpu"]].format(own["plain_us"])
    return "\n\n".join([heading(numbers["run"], own["steps"]), columns(rows), legend])
