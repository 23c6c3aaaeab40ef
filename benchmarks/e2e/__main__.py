"""Whole translations: throughput, time of a step, latency under load, memory, energy.

    python -m benchmarks.e2e [--device cuda] [--data DIR] [--only widened-5 example-50/VAR]

Parts are MODEL-WIDTH (the methods of Yang et al. 2020 and transformers.generate), MODEL-steps,
MODEL-latency and, on a CPU, MODEL-memory; --only takes parts, and after a slash the beginning of a
system. Everything is measured once, then again while time and --repeats allow, all systems in turn.
Every row is kept at once: in gpu-e2e.json and .log, or e2e-cpu.json and .log, in $OUT if that is set,
else in benchmarks/results/. Rows of parts that are not measured stay. `python -m benchmarks.plots`
draws the results.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks import corpus, report
from benchmarks.bench_translate import vars_of
from benchmarks.corpus import Corpus
from benchmarks.e2e import latency, memory, sizes, step_time, throughput
from benchmarks.e2e.meter import Meter
from benchmarks.e2e.pair import Pair
from benchmarks.e2e.sizes import Sizes
from benchmarks.e2e.task import IDENTITY, Task
from benchmarks.journal import Journal, results_folder
from benchmarks.widen import widen


def main() -> None:
    options, size = _options()
    torch.set_num_threads(options.threads)
    data = corpus.load(options.data, options.split)
    with tempfile.TemporaryDirectory() as folder:
        pairs = _pairs(options, size, Path(folder))
        planned = [
            task for task in _tasks(pairs, data, options, size) if _wanted(task, options.only)
        ]
        if not planned:
            raise SystemExit(f"--only: there is no {' and no '.join(options.only)}")
        again = [task for task in planned if task.repeats] * (options.repeats - 1)
        journal = _journal(options)
        try:
            for task in planned + again:
                journal.attempt(task.row, task.run)
        except KeyboardInterrupt:
            journal.say("interrupted")
        finally:
            journal.finish(*_tables(journal.rows))


def _journal(options: argparse.Namespace) -> Journal:
    is_cpu = options.device == "cpu"
    folder = results_folder()
    if is_cpu and folder.parent == report.RESULTS:
        folder = report.RESULTS
    name = "e2e-cpu" if is_cpu else "gpu-e2e"
    return Journal(folder, name, options.minutes, IDENTITY, vars_of(options))


def _pairs(options: argparse.Namespace, size: Sizes, folder: Path) -> list[Pair]:
    directories = {
        "example": lambda: corpus.MODEL,
        "widened": partial(_widened, folder / "widened", size, options.dtype),
    }
    chosen = {name: directories[name] for name in size.models}
    if options.model:
        chosen = {path.name: (lambda path=path: path) for path in options.model}
    meter = Meter(options.device)
    return [
        Pair(name, directory, options.device, options.dtype, meter)
        for name, directory in chosen.items()
    ]


def _widened(directory: Path, size: Sizes, dtype: str) -> Path:
    widen(corpus.MODEL, directory, dtype=dtype, **size.widened)
    return directory


def _tasks(
    pairs: list[Pair], data: Corpus, options: argparse.Namespace, size: Sizes
) -> Iterator[Task]:
    meter = Meter(options.device)
    first = options.widths[0]
    asked = dict(zip(options.widths, options.lines or [], strict=False))
    n = dict(zip(options.widths, options.n or [], strict=False))
    for pair in pairs:
        for width in options.widths:
            lines = asked.get(width, size.lines_of(pair.name, width))
            at_once = n.get(width, size.n_of(pair.name, width))
            yield from throughput.tasks(pair, data.first(lines), width, at_once, meter)
    for pair in pairs:
        at_once = n.get(first, size.n_of(pair.name, first))
        if options.only or pair.name in size.latency_of:
            yield from latency.tasks(
                pair, data.sources, first, at_once, options.loads, options.requests
            )
        yield from step_time.tasks(pair, data.sources, first, size.step_n, size.step_lengths)
        if options.device == "cpu":
            yield from memory.tasks(
                pair, options.data, options.split, first, at_once, size.num_memory_lines
            )


def _wanted(task: Task, names: list[str] | None) -> bool:
    """A name is a part, or a part, a slash and the beginning of a system."""
    return not names or any(
        task.name.startswith(name) if "/" in name else name == task.row["part"] for name in names
    )


def _tables(rows: list[dict]) -> list[list[dict]]:
    """One table of each kind of row."""
    tables: dict[str, list[dict]] = {}
    for row in rows:
        kind = next((c for c in ("BLEU", "p50_ms", "step_ms", "peak_gb") if c in row), "error")
        shown = {c: v for c, v in row.items() if c not in ("run", "phase_seconds")}
        tables.setdefault(kind, []).append(shown)
    return list(tables.values())


def _options() -> tuple[argparse.Namespace, Sizes]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    devices = ("cuda", "cpu")
    best = devices[not torch.cuda.is_available()]
    parser.add_argument("--device", choices=devices, default=best)
    parser.add_argument("--dtype", help="float32 on a CPU, bfloat16 on a GPU, for all systems")
    parser.add_argument(
        "--model",
        type=Path,
        nargs="+",
        help="directories of models with the example model's tokenizer, instead of the example "
        "model\nand the one that benchmarks.widen makes of it",
    )
    corpus.add_options(parser)
    parser.add_argument("--widths", type=int, nargs="+", default=[5, 50])
    parser.add_argument("--lines", type=int, nargs="+", help="lines for each of the widths")
    parser.add_argument("--n", type=int, nargs="+", help="sources at once for each of the widths")
    parser.add_argument(
        "--loads",
        type=float,
        nargs="+",
        default=[0.25, 0.5, 0.75, 0.9],
        help="arrivals as shares of the saturated throughput",
    )
    parser.add_argument("--requests", type=int, help="how many arrive at each load")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="parts or systems: what begins so"
    )
    parser.add_argument("--dry-run", action="store_true", help="next to nothing, on the CPU")
    options = parser.parse_args()
    if options.dry_run:
        options.device, options.widths, options.loads = "cpu", [2, 12], [0.5]
    size = {"cpu": sizes.CPU, "cuda": sizes.CUDA}[options.device]
    size = sizes.TINY if options.dry_run else size
    if len({path.name for path in options.model or []}) < len(options.model or []):
        parser.error("--model: directories of the same name would have the same rows; rename one")
    for name in ("lines", "n"):
        given = getattr(options, name)
        if given is not None and len(given) != len(options.widths):
            parser.error(f"--{name} needs a number for each of the {len(options.widths)} widths")
    for option, default in (
        ("dtype", size.dtype),
        ("minutes", size.minutes),
        ("repeats", size.repeats),
        ("requests", size.num_requests),
    ):
        if getattr(options, option) is None:
            setattr(options, option, default)
    return options, size


if __name__ == "__main__":
    main()
