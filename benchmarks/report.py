"""What every benchmark records beside its numbers, and how it prints and times them."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import date
from importlib import metadata
from pathlib import Path

import torch
from tabulate import tabulate

RESULTS = Path(__file__).parent / "results"


def environment() -> dict:
    """Commit, versions and machine of this run."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=RESULTS.parent,
    ).stdout.strip()
    packages = {}
    for name in ("torch", "pybeam", "transformers", "ctranslate2", "sacrebleu"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = None
    return {
        "date": date.today().isoformat(),
        "commit": commit,
        "python": platform.python_version(),
        **packages,
        "cpu": _cpu_model(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "")
    best = next((isa for isa in ("avx512_bf16", "avx512f", "avx2") if isa in flags), "")
    return f"{len(names)} x {names[0]} ({best})" if names else platform.processor()


def interleaved_medians(
    runs: dict[str, Callable[[], object]], repeats: int
) -> tuple[dict[str, float], dict[str, object]]:
    """Median seconds of each run and its last return value; runs take turns, so that noise is shared."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    returned = {}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            returned[name] = run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}, returned


def write(name: str, output: Path | None, data: dict) -> Path:
    """Write one JSON file, by default ``benchmarks/results/<name>.json``."""
    path = output or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # under another name first, so that Ctrl-C cannot leave half a file
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps({"environment": environment(), **data}, indent=1) + "\n")
    return unfinished.replace(path)


def table(rows: list[dict]) -> str:
    return tabulate(rows, headers="keys", floatfmt=".4g", tablefmt="github")
