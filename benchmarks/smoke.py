"""Starts every case of every benchmark and every command on next to nothing; no result is kept.

A command that lacks a package, a program or data of this machine is left out, with the reason.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path

from benchmarks.tools.data import OWN_DATA, ROOT, SHARED_DATA

VERSES = "bible-es-en/test.es"
# module -> its smallest arguments; DATA, VERSES and OUT are replaced
COMMANDS: dict[str, tuple[str, ...]] = {
    "gpu": ("--dry-run",),
    "gpu.attention_sweep": ("--dry-run",),
    "gpu.kernels_of_a_step": ("--dry-run",),
    "gpu.sound_encoders": ("--dry-run",),
    "gpu.forecast": (),
    "gpu.launches": ("--only", "greedy"),
    "gpu.layers_in_one": ("--dry-run",),
    "gpu.triton_code": ("--only", "greedy", "--first", "1"),
    "tools.makespan": ("--lines", "20", "--simulated", "20000", "--data", "VERSES"),
    "tools.ray_overhead": (
        "--lines",
        "20",
        "--part-lines",
        "10",
        "--repeats",
        "1",
        "--data",
        "VERSES",
    ),
    "stale": (),
    "tools.widen": (
        *("--output", "OUT/widened", "--width", "512", "--ffn", "2048", "--vocabulary", "8001"),
        *("--encoder-layers", "3", "--decoder-layers", "3"),
    ),
}
# every kernel of a CPU; the command `gpu` tries those of a GPU
KERNELS = ("--benchmark-only", "--benchmark-max-time=0.001", "--tiny", "-q")
# they take longest, so they begin first
LONGEST = ("service", "e2e", "huggingface")
# they wait as often as they compute
AT_A_TIME = 3
# threads that spin while they wait would take each other's core
QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
LOG = "log.txt"
# forks of a process that has imported what nearly all of them import
PROCESSES = multiprocessing.get_context("forkserver")
IMPORTED = ["torch", "transformers.generation", "pybeam", "benchmarks.__main__"]
# what an error says if something of the machine is missing
MISSING = re.compile(
    r"espeak-ng|flite|No module named|`make data`|needs the package|is not installed"
)


def smoke(benchmarks: Iterable[str], data: Path | None) -> int:
    """Run all of them, a few at a time, and print a line for each. Returns how many have failed."""
    _be_ready_to_fork()
    with tempfile.TemporaryDirectory() as folder:
        where = _data(data, Path(folder) / "data")
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            started = [
                pool.submit(_run, name, job, where, Path(folder) / "results" / name)
                for name, job in _jobs(benchmarks, where).items()
            ]
            return sum(not job.result() for job in started)


def _jobs(benchmarks: Iterable[str], data: Path) -> dict[str, list[str]]:
    """By name: a module and its arguments."""
    options = ("--dry-run", "--repeats", "1", "--threads", "1", "--data", str(data))
    order = sorted(benchmarks, key=lambda name: name not in LONGEST)
    commands = {f"benchmarks.{name}": arguments for name, arguments in COMMANDS.items()}
    return (
        {name: ["benchmarks", name, *options] for name in order}
        | {module: [module, *arguments] for module, arguments in commands.items()}
        | {"kernels": ["pytest", str(ROOT / "benchmarks/kernels"), *KERNELS]}
    )


def _be_ready_to_fork() -> None:
    """Start the process that jobs are forks of. Its environment is theirs."""
    before = dict(os.environ)
    os.environ.update(QUIET)
    for name in before:
        # poison is for results, and slow; in a worker of pytest-xdist nothing is timed
        if name == "PYBEAM_POISON" or name.startswith("PYTEST_XDIST"):
            del os.environ[name]
    PROCESSES.set_forkserver_preload(IMPORTED)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _data(given: Path | None, folder: Path) -> Path:
    """The data of this machine, with a few short verses in place of those that take long."""
    from tests.support.tiny_corpus import write_corpus

    folder.mkdir()
    write_corpus(folder, "dev", "test", "train", repeats=20)
    for place in (given,) if given else (OWN_DATA, SHARED_DATA):
        for path in place.glob("*"):
            if not (folder / path.name).exists():
                (folder / path.name).symlink_to(path.resolve())
    return folder


def _run(name: str, job: list[str], data: Path, out: Path) -> bool:
    """Run one in a process of its own, say how it went, and return whether it started."""
    out.mkdir(parents=True)
    names = {"OUT": str(out), "OUT/widened": str(out / "widened"), "VERSES": str(data / VERSES)}
    start = time.monotonic()
    process = PROCESSES.Process(target=_begin, args=([names.get(one, one) for one in job], out))
    process.start()
    process.join()
    said = f"{name} ({time.monotonic() - start:.0f} s)"
    errors = [(out / LOG).read_text()[-2000:]] if process.exitcode else _errors_in(out)
    failed = [error for error in errors if not MISSING.search(error)]
    for error in failed:
        print(f"{said} FAILED: {error}", flush=True)
    if not failed:
        lacks = dict.fromkeys(error.strip().splitlines()[-1] for error in errors)
        print(f"{said}: " + ("left out: " + "; ".join(lacks) if lacks else "starts"), flush=True)
    return not failed


def _begin(job: list[str], out: Path) -> None:
    """Be `python -m` with these arguments; what is printed goes into a file."""
    os.chdir(ROOT)
    os.environ["OUT"] = str(out)
    with (out / LOG).open("w") as log:
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(log.fileno(), descriptor)
    sys.argv = job
    runpy.run_module(job[0], run_name="__main__", alter_sys=True)


def _errors_in(out: Path) -> list[str]:
    """The errors that stand in place of numbers."""
    rows = [row for path in out.glob("*.json") for row in json.loads(path.read_text())["rows"]]
    return [f"{row.get('case')}: {row['error']}" for row in rows if "error" in row]
