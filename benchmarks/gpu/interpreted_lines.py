"""How often each line of a step's Triton kernels runs, counted in Triton's interpreter.

    TRITON_INTERPRET=1 python -m benchmarks.gpu.interpreted_lines FILE

writes to the file, as JSON, each launch of a step of one beam of 5 behind 16 others: its kernel, and how
often a program has run each line. A CPU launches none for products and norms, which have no loops.
"""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import pybeam
from benchmarks.gpu.count_kernels import many_multiprocessors
from benchmarks.gpu.one_step import OneStep
from benchmarks.gpu.sass import Instruction
from benchmarks.tools.data import ROOT

KERNELS = "triton_kernels/"
WIDTH, DEPTH, LONGEST, SOURCE_TOKENS = 5, 16, 64, 30
# bytes of a bfloat16, whose variant of attention is interpreted with numbers of float32
ITEM_BYTES = 2

Counted = Sequence[tuple[str, int, float]]


class Lines:
    """How often a program runs an instruction, by its line; None where its file was not counted."""

    def __init__(self, counted: Counted) -> None:
        self._times = {(file, line): times for file, line, times in counted}
        self._files = {file for file, _, _ in counted}
        for file in self._files:
            for header, first in _loops(file):
                own = self._times.get((file, header), 1.0) - 1
                self._times[file, header] = self._times.get((file, first), 0.0) if first else own

    def __call__(self, one: Instruction) -> float | None:
        for place in one.places:
            file = place.file.rpartition(KERNELS)[2]
            if file in self._files:
                return self._times.get((file, place.line), 0.0)
        return None


@cache
def _loops(file: str) -> list[tuple[int, int]]:
    """The lines of loops, and the first line of each, 0 where another loop begins there.

    A loop has as many turns as its first line; its own line runs once more.
    """
    tree = ast.parse((ROOT / KERNELS / file).read_text("utf-8"))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    firsts = [(loop.lineno, loop.body[0]) for loop in loops]
    return [(line, 0 if isinstance(one, ast.For) else one.lineno) for line, one in firsts]


def of_step() -> list[tuple[str, Lines]]:
    """The lines of a step's kernels by launch, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lines.json")
        # a process either interprets kernels or compiles them
        given = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", __name__, str(path)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **given}, check=True)
        return [(name, Lines(counted)) for name, counted in json.loads(path.read_text("utf-8"))]


@contextmanager
def _counting() -> Iterator[list[tuple[str, Counted]]]:
    """Count the lines of launches in the interpreter."""
    from triton.runtime import interpreter

    launches: list[tuple[str, Counted]] = []
    counter: Counter[tuple[str, int]] = Counter()
    start = interpreter.GridExecutor.__call__

    def trace(frame: Any, event: str, given: Any) -> Any:
        file = frame.f_code.co_filename
        if event == "line":
            counter[file.rpartition(KERNELS)[2], frame.f_lineno] += 1
        return trace if KERNELS in file else None

    def started(self: Any, *arguments: Any, **named: Any) -> None:
        counter.clear()
        sys.settrace(trace)
        try:
            start(self, *arguments, **named)
        finally:
            sys.settrace(None)
        num_programs = math.prod(self.grid)
        counted = [(file, line, num / num_programs) for (file, line), num in counter.items()]
        launches.append((self.fn.__name__, counted))

    with patch.object(interpreter.GridExecutor, "__call__", started):
        yield launches


def main() -> None:
    from benchmarks.gpu.needed_kernels import NETWORKS, ONE_LAYER
    from pybeam import backends
    from pybeam.triton_kernels import attention
    from tests.support.tiny_models import save_tiny_model

    backend = backends.load("triton")
    chosen = attention.variant_of

    def of_half(rows: int, sources: int, size: int, item_bytes: int) -> Any:
        return chosen(rows, sources, size, ITEM_BYTES)

    with (
        torch.inference_mode(),
        many_multiprocessors(),
        patch.object(attention, "variant_of", of_half),
        tempfile.TemporaryDirectory() as folder,
    ):
        save_tiny_model(Path(folder), "m2m_100", **ONE_LAYER, **NETWORKS["example"])
        model = pybeam.load_model(Path(folder), device="cpu", dtype="float32")
        algorithm = pybeam.fixed_beam(WIDTH, min_length=LONGEST - 2, max_length=LONGEST)
        tokens = [list(range(5, 5 + SOURCE_TOKENS))]
        step = OneStep(model, algorithm, backend, tokens, LONGEST, depth=DEPTH)
        with _counting() as launches:
            step()
    Path(sys.argv[1]).write_text(json.dumps(launches), "utf-8")


if __name__ == "__main__":
    main()
