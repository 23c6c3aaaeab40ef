"""Starts every case of every benchmark and every command on next to nothing; no result is kept.

A command that lacks a package, a program or data of this machine is left out, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.data import OWN_DATA, ROOT, SHARED_DATA

VERSES = "bible-es-en/test.es"
# module -> its smallest arguments; DATA, VERSES and OUT are replaced
COMMANDS: dict[str, tuple[str, ...]] = {
    "admission": ("--requests", "20", "--repeats", "1"),
    "count_instructions": ("--output", "OUT"),
    "gpu": ("--dry-run",),
    "gpu.forecast": (),
    "gpu.host": ("--repeats", "1", "--requests", "4"),
    "gpu.launches": ("--only", "greedy"),
    "import_time": ("--repeats", "1"),
    "makespan": ("--lines", "20", "--simulated", "100000", "--data", "VERSES"),
    "ray_overhead": ("--lines", "20", "--part-lines", "10", "--repeats", "1", "--data", "VERSES"),
    "stale": (),
    "triton_code": ("--output", "OUT", "--first", "3"),
    "widen": (
        *("--output", "OUT/widened", "--width", "512", "--ffn", "2048", "--vocabulary", "8001"),
        *("--encoder-layers", "3", "--decoder-layers", "3"),
    ),
}
# they take longest, so they begin first
LONGEST = ("service", "e2e", "huggingface")
# two run at a time, and threads that spin while they wait would take each other's core
QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
# what an error says if something of the machine is missing
MISSING = re.compile(
    r"espeak-ng|flite|No module named|`make data`|needs the package|is not installed"
)


def smoke(benchmarks: Iterable[str], data: Path | None) -> int:
    """Run all of them, two at a time, and print a line for each. Returns how many have failed."""
    with tempfile.TemporaryDirectory() as folder:
        where = data or _data(Path(folder))
        jobs = {
            name: ["benchmarks", name, "--dry-run", "--repeats", "1", "--threads", "1"]
            for name in sorted(benchmarks, key=lambda name: name not in LONGEST)
        }
        jobs = {name: [*job, "--data", str(where)] for name, job in jobs.items()}
        for module, arguments in COMMANDS.items():
            jobs[f"benchmarks.{module}"] = [f"benchmarks.{module}", *arguments]
        with ThreadPoolExecutor(2) as pool:
            started = [
                pool.submit(_run, name, job, where, Path(folder) / "results" / name)
                for name, job in jobs.items()
            ]
            return sum(not job.result() for job in started)


def _data(folder: Path) -> Path:
    """The data of this machine, or else a few verses."""
    for place in (OWN_DATA, SHARED_DATA):
        if (place / VERSES).is_file():
            return place
    from tests.support.tiny_corpus import write_corpus

    write_corpus(folder, "dev", "test")
    return folder


def _run(name: str, job: list[str], data: Path, out: Path) -> bool:
    """Run one in a process of its own, say how it went, and return whether it started."""
    out.mkdir(parents=True)
    names = {"OUT": str(out), "OUT/widened": str(out / "widened"), "VERSES": str(data / VERSES)}
    command = [sys.executable, "-m", *(names.get(one, one) for one in job)]
    start = time.monotonic()
    env = {**os.environ, **QUIET, "OUT": str(out)}
    env.pop("PYBEAM_POISON", None)  # which is for results, and slow
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    said = f"{name} ({time.monotonic() - start:.0f} s)"
    errors = [run.stderr[-2000:]] if run.returncode else _errors_in(out)
    failed = [error for error in errors if not MISSING.search(error)]
    for error in failed:
        print(f"{said} FAILED: {error}", flush=True)
    if not failed:
        lacks = dict.fromkeys(error.strip().splitlines()[-1] for error in errors)
        print(f"{said}: " + ("left out: " + "; ".join(lacks) if lacks else "starts"), flush=True)
    return not failed


def _errors_in(out: Path) -> list[str]:
    """The errors that stand in place of numbers."""
    rows = [row for path in out.glob("*.json") for row in json.loads(path.read_text())["rows"]]
    return [f"{row.get('case')}: {row['error']}" for row in rows if "error" in row]
