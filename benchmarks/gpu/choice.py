"""Writes the table by which ``backend="auto"`` chooses on a GPU."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import torch

from benchmarks.gpu import bench_select
from pybeam.backends import gpu_choice

TABLE = Path(gpu_choice.__file__)
CANDIDATES = ("native", "triton")
TEXT = '''"""The faster backend of `select` on a GPU, by shape; `make gpu-bench` writes this file."""

from typing import Any

MEASURED_ON = {measured_on}

# the first rule that a shape fits decides; Triton where none does
SELECT: list[dict[str, Any]] = [
{rules}
]
'''


def write(rows: list[dict], path: Path = TABLE) -> Path:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    measured_on = json.dumps(f"{gpu}, {date.today().isoformat()}")
    rules = "\n".join(f"    {json.dumps(rule)}," for rule in select_rules(rows))
    path.write_text(TEXT.format(measured_on=measured_on, rules=rules))
    return path


def select_rules(rows: list[dict]) -> list[dict]:
    """The faster backend at every measured shape; a shape stands for those up to its size."""
    fastest = {}
    for case in bench_select.cases(tiny=False):
        us = {
            row["backend"]: row["us"]
            for row in rows
            if row.items() >= case.row.items() and row["backend"] in CANDIDATES and "us" in row
        }
        if case.max_candidates is not None and len(us) == len(CANDIDATES):
            shape = (case.dtype.itemsize, case.num_rows, case.vocab_size)
            fastest[shape] = min(us, key=us.get)
    winners = set(fastest.values())
    if len(winners) <= 1:
        return [{"backend": winner} for winner in winners]
    rules = [
        {"item_bytes": item, "max_rows": num_rows, "max_vocab": vocab, "backend": name}
        for (item, num_rows, vocab), name in sorted(fastest.items())
    ]
    largest = {rule["item_bytes"]: rule["backend"] for rule in rules}
    return rules + [{"item_bytes": item, "backend": name} for item, name in largest.items()]
