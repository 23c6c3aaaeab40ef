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

import pybeam
from benchmarks import corpus, peers
from benchmarks.meter import GIGA, resident_bytes
from benchmarks.peers import GENERATE
from benchmarks.plans import methods
from benchmarks.setup import Setup
from benchmarks.tasks import Task
from benchmarks.tools.data import ROOT
from benchmarks.translation import MAX_LENGTH, Decoding

SYSTEMS = ("GREEDY", "FIXED", "VAR-STREAM", GENERATE)


def tasks(setup: Setup, network: str) -> list[Task]:
    width = setup.size.widths[0]
    options = {
        "data": str(setup.data) if setup.data else None,
        "lines": setup.size.num_memory_lines,
        "width": width,
        "n": setup.size.n_of(network, width),
    }

    def run(system: str) -> dict:
        directory = str(setup.networks.directory(network))
        return in_process("benchmarks.memory", options | {"model": directory, "system": system})

    # next to nothing: one of each library, as each is a process
    names = SYSTEMS[-2:] if setup.is_tiny else SYSTEMS
    return [Task(f"{network}-memory", name, lambda name=name: run(name)) for name in names]


def in_process(module: str, options):
    """What `python -m MODULE OPTIONS` prints last; both are JSON.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(options)],
        cwd=ROOT,
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
    data = corpus.load(options["data"] and Path(options["data"]), lines=options["lines"])
    _translate(options)(data.sources)
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


def _translate(options: dict) -> peers.Translate:
    width, n = options["width"], options["n"]
    if options["system"] == GENERATE:
        model = peers.transformers_model(Path(options["model"]))
        return peers.transformers_beam(model, width, n, MAX_LENGTH)
    system = methods(width, n)[options["system"]]
    model = pybeam.load_model(options["model"], device="cpu", dtype="float32")
    return Decoding(model, system.algorithm, system.schedule)


if __name__ == "__main__":
    main()
