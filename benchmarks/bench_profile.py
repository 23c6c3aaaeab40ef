"""Share of a step that no operator covers, Python's above all, at about 64 rows per step.

python -m benchmarks.bench_profile [--model DIR] [--threads 2] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import pybeam
from benchmarks import corpus, report
from pybeam.cli.random_sources import random_sources
from pybeam.profile.measure import measure
from pybeam.profile.table import as_dict

NUM_SOURCES, SOURCE_LENGTH, STEPS, WIDTH = 13, 32, 32, 5


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    model = pybeam.load_model(options.model, device="cpu", dtype="float32")
    # every source takes exactly that many steps, so that every step has as many rows
    algorithm = pybeam.fixed_beam(WIDTH, min_length=STEPS - 1, max_length=STEPS)
    schedule = pybeam.Batch(NUM_SOURCES)
    requests = random_sources(model, NUM_SOURCES, (SOURCE_LENGTH, SOURCE_LENGTH))
    decoder = pybeam.Decoder(model, algorithm, schedule)
    run = {
        "model": repr(model),
        "algorithm": repr(algorithm),
        "schedule": repr(schedule),
        "threads": options.threads,
        "sources": NUM_SOURCES,
        "source length": SOURCE_LENGTH,
        "repeats": options.repeats,
    }
    numbers = as_dict(measure(decoder, requests, repeats=options.repeats))
    row = {"run": run | report.environment(), **numbers}
    write(options.output or report.RESULTS / "profile-cpu.json", row)
    print(report.table([_summary(name, line) for name, line in _lines(numbers)]))


def _lines(numbers: dict) -> list[tuple[str, dict]]:
    return [*numbers["phases"].items(), ("step", numbers["step"])]


def _summary(name: str, line: dict) -> dict:
    return {
        "phase": name,
        "ms/step": line["ms"],
        "share %": 100 * line["share"],
        "operators %": 100 * line["busy_share"],
        "gap %": 100 * line["gap_share"],
        "gap at most %": 100 * line["gap_limit_share"],
    }


def write(path: Path, row: dict) -> None:
    """Replace this model's row in the results file; those of other models stay."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [old for old in rows if old["run"]["model"] != row["run"]["model"]]
    report.write(path.stem, path, {"rows": [*rows, row]})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, default=corpus.MODEL, help="such as one of benchmarks.widen"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
