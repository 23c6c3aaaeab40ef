"""Peak resident memory of one system on a CPU, each in a process that does nothing else.

The figure is what the process occupied at most, from when its libraries were loaded until it had
translated: weights, loading and search, without the interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks import corpus
from benchmarks.e2e.meter import GIGA, Meter, resident_bytes
from benchmarks.e2e.pair import GENERATE, Pair
from benchmarks.e2e.task import Task

SYSTEMS = ("GREEDY", "FIXED", "VAR-STREAM", GENERATE)


def tasks(pair: Pair, data: Path, split: str, width: int, n: int, num_lines: int) -> list[Task]:
    options = {"data": str(data), "split": split, "width": width, "n": n, "lines": num_lines}

    def run(system: str) -> dict:
        return in_process(options | {"model": str(pair.directory), "system": system})

    return [
        Task({"part": f"{pair.name}-memory", "system": name}, lambda name=name: run(name))
        for name in SYSTEMS
    ]


def in_process(options: dict) -> dict:
    """Runs `main` in a process of its own.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.e2e.memory", json.dumps(options)],
        cwd=corpus.ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the process failed: {done.stderr[-200:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options = json.loads(sys.argv[1])
    if options["system"] == GENERATE:
        # transformers imports a model's classes only when it is loaded
        from transformers import M2M100ForConditionalGeneration  # noqa: F401
    torch.set_num_threads(2)
    before = resident_bytes()
    data = corpus.load(Path(options["data"]), options["split"], options["lines"])
    pair = Pair("alone", lambda: Path(options["model"]), "cpu", "float32", Meter("cpu"))
    pair.system(options["system"], options["width"], options["n"])(data.sources)
    print(
        json.dumps(
            {
                "lines": len(data.sources),
                "width": options["width"],
                "n": options["n"],
                "peak_gb": (resident_bytes("VmHWM") - before) / GIGA,
            }
        )
    )


if __name__ == "__main__":
    main()
