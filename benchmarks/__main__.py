"""Measures pybeam beside other systems.

python -m benchmarks --list                            what there is
python -m benchmarks translate --only fixed-5          one case of one benchmark
python -m benchmarks readme                            translation: the rows that README.md quotes
python -m benchmarks --smoke                           whether everything starts, in three minutes

Systems of a case take turns; seconds are medians. Every row is kept at once in NAME-cpu.json (on a GPU
NAME-gpu.json), in $OUT if that is set, else in benchmarks/results/, with the commit, versions and
machine of its run; rows that are not measured again stay. With --lines, --repeats or --dry-run, numbers
are not comparable: give $OUT then.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import sizes
from benchmarks.journal import Journal, results_folder
from benchmarks.setup import Setup
from benchmarks.smoke import smoke
from benchmarks.tasks import IDENTITY, Task, measure

# name -> module and function that gives the cases, and the columns beside case and system by which
# rows are told apart
BENCHMARKS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "translate": ("plans", "translate", ()),
    "one-request": ("one_request", "one_request", ("threads",)),
    "e2e": ("end_to_end", "end_to_end", ("load",)),
    "ensemble": ("plans", "ensemble", ()),
    "jacobi": ("plans", "jacobi", ()),
    "stopping": ("stopping", "stopping", ("r", "width", "lines", "beside")),
    "parsing": ("parsing", "parsing", ()),
    "speech": ("speech", "speech", ()),
    "quality": ("quality", "quality", ()),
    "pipelines": ("pipelines", "pipelines", ()),
    "marian": ("marian", "marian", ()),
    "llama": ("llama", "llama", ()),
    "onnx": ("onnx", "onnx", ()),
    "huggingface": ("wrapped", "huggingface", ()),
    "causal": ("causal", "causal", ()),
    "whisper": ("wrapped", "whisper", ()),
    "transcription": ("transcription", "transcription", ()),
    "compat": ("compat", "compat", ()),
    "profile": ("phases", "profile", ()),
    "service": ("service", "service", ("load", "clients")),
    "admission": ("admission", "admission", ("load",)),
    "cores": ("cores", "cores", ("load",)),
    "corpus": ("corpus_runs", "corpus_runs", ()),
    "catalogue": ("catalogue", "catalogue", ()),
    "shortlist": ("shortlist", "shortlist", ()),
    "ctc": ("ctc", "frame_searches", ()),
    "terminology": ("terminology", "terminology", ()),
    "rules": ("rules", "rules", ()),
}
# what README.md quotes: a benchmark and its cases
README = (
    "translate",
    *("fixed-5", "variable-5", "variable-50", "reduced-5", "widened-fixed-5"),
    *("int8-5", "int8-variable-50", "widened-int8-5"),
)
# what ends in time even if nobody says when
MINUTES = {"service": 12.0}


def main() -> None:
    # a shell that starts this in the background has it ignore Ctrl-C, by which `make` stops it in time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = _options()
    if options.list:
        print(_listing(options))
        return
    if options.smoke:
        sys.exit(f"{num} have failed" if (num := smoke(BENCHMARKS, options.data)) else 0)
    for name in options.names:
        run(name, options)


def run(name: str, options: argparse.Namespace) -> None:
    """Measure one benchmark, and keep what there is when it is interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        setup = _setup(name, options, Path(folder))
        journal = setup.journal
        try:
            measure(
                _wanted(cases_of(name, setup), setup.only),
                journal,
                setup.threads,
                options.repeats,
                is_broad=options.minutes is not None,
            )
        except KeyboardInterrupt:
            journal.save()
            sys.exit(f"interrupted; what has been measured is kept in {journal.path}")
        if setup.only and not journal.own_rows and not journal.is_over:
            sys.exit(f"{name} has no case {' and no '.join(setup.only)}; see --list")
        journal.finish()
        journal.say(f"\n{journal.path}")


def cases_of(name: str, setup: Setup) -> Iterator[list[Task]]:
    module, function, _ = BENCHMARKS[name]
    return getattr(importlib.import_module(f"benchmarks.{module}"), function)(setup)


def _wanted(cases: Iterator[list[Task]], names: tuple[str, ...]) -> Iterator[list[Task]]:
    for tasks in cases:
        chosen = [task for task in tasks if task.is_wanted(names)]
        if chosen:
            yield chosen


def _setup(name: str, options: argparse.Namespace, folder: Path, keeps: bool = True) -> Setup:
    """With `keeps`, results stay; else they go where everything is deleted in the end."""
    size = sizes.CUDA if options.device == "cuda" else sizes.CPU
    size = sizes.TINY if options.dry_run else size
    if options.dtype:
        size = dataclasses.replace(size, dtype=options.dtype)
    threads = options.threads or 2
    settings = {
        "command": command_line(sys.argv[1:]),
        "device": options.device,
        "threads": threads,
        "dtype": size.dtype,
    }
    keeps &= not options.dry_run or "OUT" in os.environ
    results = results_folder(options.device) if keeps else folder
    file = f"{name}-{'gpu' if options.device == 'cuda' else 'cpu'}"
    identity = (*IDENTITY, *BENCHMARKS[name][2])
    return Setup(
        device=options.device,
        size=size,
        threads=threads,
        folder=folder,
        journal=Journal(results, file, identity, settings, options.minutes or MINUTES.get(name)),
        data=options.data,
        lines=3 if options.dry_run else options.lines,
        only=tuple(options.only or ()),
        is_tiny=options.dry_run,
    )


def command_line(arguments: Sequence[str]) -> str:
    """The command as results hold it: without the data's folder, which is this machine's alone."""
    pairs = zip(("", *arguments), arguments, strict=False)
    kept = [one for before, one in pairs if "--data" not in (before, one.partition("=")[0])]
    return shlex.join(["python", "-m", "benchmarks", *kept])


def _listing(options: argparse.Namespace) -> str:
    """Every benchmark with the first line of its documentation, its cases and their systems."""
    lines = []
    for name, (module, function, _) in BENCHMARKS.items():
        if options.names and name not in options.names:
            continue
        try:
            found = getattr(importlib.import_module(f"benchmarks.{module}"), function)
            cases = _named_cases(name, options)
        except (ImportError, FileNotFoundError) as error:
            lines.append(f"{name:12} cannot be measured here: {error}")
            continue
        lines.append(f"{name:12} {found.__doc__.splitlines()[0]}")
        lines += [f"{'':12} {case}: {' | '.join(systems)}" for case, systems in cases.items()]
    return "\n".join(lines)


def _named_cases(name: str, options: argparse.Namespace) -> dict[str, dict[str, None]]:
    """The systems of every case; nothing is measured."""
    named: dict[str, dict[str, None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        setup = _setup(name, options, Path(folder), keeps=False)
        for tasks in cases_of(name, setup):
            for task in tasks:
                named.setdefault(task.case, {})[task.system] = None
    return named


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        # what results hold of the command knows the names alone
        allow_abbrev=False,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"readme, or some of {', '.join(BENCHMARKS)}"
    )
    parser.add_argument("--list", action="store_true", help="print what can be measured")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="CASE",
        help="these cases; CASE/SYSTEM for the systems of a case that begin so",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="default: what `make data` built")
    parser.add_argument("--lines", type=int, help="so many lines (sources) instead of the case's")
    parser.add_argument("--repeats", type=int, help="instead of the case's")
    parser.add_argument("--minutes", type=float, help="end after so long; all once, then again")
    parser.add_argument("--threads", type=int, help="default: 2")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", help="default: float32, on a GPU bfloat16")
    parser.add_argument("--dry-run", action="store_true", help="next to nothing, to try it out")
    parser.add_argument(
        "--smoke", action="store_true", help="start every case and every command, and keep nothing"
    )
    options = parser.parse_args()
    if options.names == ["readme"]:
        options.names, options.only = [README[0]], options.only or README[1:]
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; choose from {', '.join(BENCHMARKS)}")
    if not options.names and not options.list and not options.smoke:
        parser.error("name a benchmark, or see --list")
    return options


if __name__ == "__main__":
    main()
