"""Microbenchmarks on a GPU: a step, its phases and its kernels, as µs, GB/s and share of the copy rate.

    python -m benchmarks.gpu [--minutes 8] [--only select] [--dry-run]

It runs `pytest benchmarks/kernels --benchmark-only`, what is worth most first. A time is that of one call
among calls that follow one another in a CUDA graph, on inputs that the L2 does not hold. Before it is timed,
a result is compared with that of the reference. torch stands beside it, torch.compile in one case of a
kernel, and FlashInfer, if that is installed; the end of the log says what was not compared, and why. Beside
each time stands its forecast: the limit of the machine, its share, and what it should take. Every number is
kept after every row in gpu-bench.json and gpu-bench.log, in $OUT if that is set, else in
benchmarks/results/<gpu>/.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.journal import results_folder

KERNELS = Path(__file__).parents[1] / "kernels"
GROUPS = sorted(path.stem.removeprefix("bench_") for path in KERNELS.glob("bench_*.py"))


def main() -> None:
    # a shell that starts this in the background has it ignore Ctrl-C, by which `make` stops it in time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = _options()
    # a dry run leaves nothing behind, unless it is told where
    keeps = not options.dry_run or "OUT" in os.environ
    with nullcontext() if keeps else TemporaryDirectory() as scratch:
        device = "cpu" if options.dry_run else "cuda"
        folder = results_folder(device) if scratch is None else Path(scratch)
        status = pytest.main(arguments(options, folder))
    # rows say what has failed, and others are worth as much
    sys.exit(0 if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else status)


def arguments(options: argparse.Namespace, folder: Path) -> list[str]:
    """Those of pytest."""
    names = [options.only] if options.only else GROUPS
    device = "--trial-of-cuda" if options.dry_run else "--device=cuda"
    rounds = ("--benchmark-max-time=0.01", "--benchmark-min-rounds=1") if options.dry_run else ()
    return [
        *("--benchmark-only", "--benchmark-quiet", "-q", "-s", device),
        *rounds,
        *(f"--minutes={options.minutes}", f"--journal={folder}"),
        f"--rootdir={KERNELS}",
        f"--config-file={KERNELS / 'pytest.ini'}",
        *(str(KERNELS / f"bench_{name}.py") for name in names),
    ]


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
