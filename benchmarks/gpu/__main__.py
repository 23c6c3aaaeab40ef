"""Microbenchmarks on a GPU: a step, its phases and its kernels, as µs, GB/s and share of the copy rate.

    python -m benchmarks.gpu [--minutes 8] [--only select] [--dry-run]

A time is that of one call among calls that follow one another in a CUDA graph, on inputs that the L2
does not hold. Before it is timed, a result is compared with that of the reference. Beside each time stands
its forecast: the limit of the machine, and the least and the most that it should take. Every number is kept
after every row in gpu-bench.json and gpu-bench.log, in $OUT if that is set, else in
benchmarks/results/<gpu>/.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu import (
    bench_norm,
    bench_rows,
    bench_select,
    bench_step,
    bench_tree_attention,
    machine,
)
from benchmarks.gpu.journal import IDENTITY, Journal
from benchmarks.gpu.summary import summary
from benchmarks.gpu.timing import Timer
from benchmarks.journal import results_folder
from pybeam import backends


def main() -> None:
    # a shell that starts this in the background has it ignore Ctrl-C, by which `make` stops it in time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = _options()
    device = torch.device("cpu" if options.dry_run else "cuda")
    # a dry run leaves nothing behind, unless it is told where
    keeps = not options.dry_run or "OUT" in os.environ
    with nullcontext() if keeps else TemporaryDirectory() as scratch:
        folder = results_folder(device.type) if scratch is None else Path(scratch)
        _run(options, device, folder)


def _run(options: argparse.Namespace, device: torch.device, folder: Path) -> None:
    tiny = options.dry_run
    settings = {"tiny": tiny, "only": options.only}
    journal = Journal(folder, "gpu-bench", IDENTITY, settings, options.minutes)
    timer = Timer(device)
    torch.manual_seed(0)
    try:
        with torch.inference_mode():
            _measure(_groups(timer, journal, tiny), journal, options.only)
    except KeyboardInterrupt:
        journal.say("interrupted")
    finally:
        journal.finish(summary(journal.rows))


GROUPS = ("step", "select", "tree_attention", "norm", "rows")
Group = Callable[[], None]


def _groups(timer: Timer, journal: Journal, tiny: bool) -> Iterator[tuple[str, Group]]:
    """In the order in which they are worth most, should time run out."""
    names = [name for name in ("native", "triton") if name in backends.available()]
    others = names if timer.device.type == "cpu" else [n for n in names if n != "native"]
    yield "machine", partial(machine.measure, timer, journal, tiny)
    yield "step", partial(bench_step.measure, timer, journal, others, tiny)
    yield "select", partial(bench_select.measure_first, timer, journal, names, tiny)
    yield "tree_attention", partial(bench_tree_attention.measure, timer, journal, others, tiny)
    yield "norm", partial(bench_norm.measure, timer, journal, others, tiny)
    yield "rows", partial(bench_rows.measure, timer, journal, others, tiny)
    yield "select", partial(bench_select.measure_compiled, timer, journal, tiny)
    yield "norm", partial(bench_norm.measure_compiled, timer, journal, tiny)
    yield "select", partial(bench_select.measure, timer, journal, names, tiny)


def _measure(groups: Iterable[tuple[str, Group]], journal: Journal, only: str | None) -> None:
    for name, measure in groups:
        if only not in (None, name) and name != "machine":
            continue
        try:
            measure()
        # its inputs may not fit, say; other groups are worth as much
        except Exception as error:
            journal.say(f"{name} ended early: {type(error).__name__}: {error}")
            print(traceback.format_exc(), file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8, help="stop after so long")
    parser.add_argument("--only", choices=GROUPS, help="one group of rows")
    parser.add_argument(
        "--dry-run", action="store_true", help="tiny shapes on the CPU; keeps no file"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
