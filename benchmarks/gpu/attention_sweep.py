"""Which variant of tree attention is the fastest: a table of shapes and variants, all compiled beforehand.

    python -m benchmarks.gpu.attention_sweep [--seconds 60] [--dry-run]

A row of the table is a variant, named by the constants of `pybeam.triton_kernels.attention.variants.Variant`,
a column is a shape. A time is that of one launch among launches that follow one another in a CUDA graph, on
keys and values that the L2 does not hold. Results are compared with those of the reference. All numbers go to
attention-sweep.json, in $OUT if that is set, else in benchmarks/results/<gpu>/. Whoever changes `variant_of`
by them says there which card gave them, and when.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import torch
from tabulate import tabulate
from torch import Tensor

from benchmarks.gpu.forecast import MACHINES
from benchmarks.journal import results_folder
from benchmarks.kernels.bench_tree_attention import grown_tree
from benchmarks.kernels.clock import median_us, num_copies
from pybeam.backends import reference
from pybeam.contracts import Cells, NewNodes
from pybeam.inspect.work import Work
from pybeam.triton_kernels import attention
from pybeam.triton_kernels.attention.variants import Variant
from tests.support.aot import compile_for, recorded

DTYPE, HEAD_SIZE, SCALE = torch.bfloat16, 64, 0.125
# steps behind, the room of a hypothesis, and tokens of a source
DEPTH, LONGEST, SOURCE_TOKENS = 16, 64, 30
# with it trees have as many nodes as those of networks: about 31 of 5 rows, and 200 of 50
SHARE = 0.05
TOLERANCE = 2e-2


class Shape(NamedTuple):
    """A launch of a step; self-attention sees the tree by masks, and writes new nodes."""

    num_heads: int
    num_sources: int
    width: int
    is_self: bool

    def __str__(self) -> str:
        kind = "self" if self.is_self else "cross"
        return f"{self.num_sources}x{self.width} {kind}, {self.num_heads} heads"


# what costs most comes first
BEAMS = ((64, 5), (64, 50), (1, 5), (16, 5))
SHAPES = [Shape(heads, *beam, own) for heads in (16, 4) for beam in BEAMS for own in (True, False)]


def variants_for(shape: Shape) -> list[tuple[Variant, int]]:
    """Variants, each with the most parts."""
    low = [
        *((8, 32, 1, 2, 255), (8, 32, 1, 1, 255), (8, 64, 1, 1, 255), (8, 16, 1, 1, 255)),
        *((8, 32, 2, 2, 255), (8, 32, 2, 1, 255), (8, 64, 2, 1, 255), (8, 32, 4, 1, 255)),
        *((8, 32, 1, 2, 168), (16, 32, 1, 1, 255)),
    ]
    high = [
        *((64, 32, 4, 2, 168), (64, 32, 4, 2, 128), (64, 32, 4, 1, 168), (64, 32, 4, 1, 128)),
        *((64, 16, 4, 1, 168), (64, 16, 4, 2, 168), (64, 16, 4, 3, 168), (16, 32, 1, 1, 255)),
    ]
    variants = [
        Variant(block_m, block_n, HEAD_SIZE, *rest)
        for block_m, block_n, *rest in (low if shape.width <= 8 else high)
    ]
    # few programs are split where lists are long
    num_splits = (1, 2) if shape.num_sources == 1 else (1,)
    return [(variant, num) for num in num_splits for variant in variants[:: 1 if num == 1 else 4]]


class Inputs:
    """Those of a shape: each source has a tree of its own, whose last nodes are new."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        torch.manual_seed(0)
        heads, num, width, is_self = shape
        trees = [grown_tree(width, DEPTH, SHARE)[0] for _ in range(num)]
        sizes = [len(tree) if is_self else SOURCE_TOKENS for tree in trees]
        num_cells, most = sum(sizes), LONGEST * width
        cell = torch.zeros(num, most, dtype=torch.int32)
        mask = torch.zeros(num, most, 1, dtype=torch.int64)
        new_cell = []
        order = torch.randperm(num_cells).int().split(sizes)
        for line, (own, tree) in enumerate(zip(order, trees, strict=True)):
            cell[line, : len(own)] = own
            if is_self:
                mask[line, : len(tree), 0] = tree
                new_cell.append(own[-width:])
        ints = partial(torch.tensor, dtype=torch.int32)
        entry = torch.arange(width).repeat(num).int() if is_self else None
        tables = (
            *(ints([width * i for i in range(num + 1)]), ints(range(num)), cell, ints(sizes)),
            *(mask if is_self else None, entry),
        )
        self.cells = Cells(*(None if table is None else table.to(device) for table in tables))
        rows = torch.randn(num * width, 3, heads, HEAD_SIZE, device=device).to(DTYPE)
        self.query = rows[:, 0]
        self.new = None
        if is_self:
            self.new = NewNodes(rows[:, 1], rows[:, 2], torch.cat(new_cell).to(device))
        num_bytes = 2 * num_cells * heads * HEAD_SIZE * DTYPE.itemsize
        # every row sees at least its own path
        seen = DEPTH if is_self else SOURCE_TOKENS
        self.work = Work(num_bytes, 4 * num * width * seen * heads * HEAD_SIZE)
        self.pools = [
            torch.randn(num_cells, 2, heads, HEAD_SIZE, device=device).to(DTYPE)
            for _ in range(num_copies(device, num_bytes))
        ]

    def ours(self, pool: Tensor, num_splits: int) -> Tensor:
        given = self.query, *pool.unbind(1), self.cells, SCALE, None, self.new
        return attention.tree_attention(*given, num_splits=num_splits)

    def expected(self) -> Tensor:
        pool = self.pools[0].float()
        new = self.new
        if new is not None:
            new = NewNodes(new.key.float(), new.value.float(), new.cell)
        query = self.query.float()
        return reference.tree_attention(query, *pool.unbind(1), self.cells, SCALE, None, new)


@contextmanager
def choosing(variant: Variant) -> Iterator[None]:
    """Launch this variant whatever fits."""
    with patch.object(attention, "variant_of", lambda *_: variant):
        yield


def compile_one(job: tuple[Shape, Variant, int]) -> None:
    """Put what a launch runs into Triton's cache, on a machine whose GPU this process leaves alone."""
    shape, variant, num_splits = job
    inputs = Inputs(shape._replace(num_sources=2), torch.device("cpu"))
    with choosing(variant):
        [launch] = recorded(lambda: inputs.ours(inputs.pools[0], num_splits))
    compile_for(launch, 90)


def compile_all(shapes: list[Shape]) -> None:
    jobs = {
        # the number of sources and of heads is no constant
        (shape.is_self, variant, splits > 1): (shape, variant, splits)
        for shape in shapes
        for variant, splits in variants_for(shape)
    }
    # a process that has used the GPU cannot be forked
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        pool.map(compile_one, jobs.values(), chunksize=1)


def row_of(inputs: Inputs, variant: Variant, num_splits: int, expected: Tensor) -> dict:
    """Time and error of one variant."""
    row: dict = {**variant._asdict(), "num_splits": num_splits}
    with choosing(variant):
        try:
            actual = inputs.ours(inputs.pools[0], num_splits)
            row["error"] = float((actual.float() - expected).abs().max())
            calls = [partial(inputs.ours, pool, num_splits) for pool in inputs.pools]
            row["us"] = round(median_us(calls, actual.device), 2)
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {error}"[:300]
    return row


def swept(shapes: list[Shape], device: torch.device, until: float) -> Iterator[dict]:
    """Rows, shape by shape, as long as there is time."""
    machine = MACHINES["H200"]
    for shape in shapes:
        inputs = Inputs(shape, device)
        expected = inputs.expected()
        limit = round(inputs.work.us(machine, "bfloat16"), 2)
        for variant, num_splits in variants_for(shape):
            if time.perf_counter() > until:
                return
            row = row_of(inputs, variant, num_splits, expected)
            yield {"shape": str(shape), "limit_us": limit, **row}
        # memory of one shape at a time
        del inputs, expected


def name_of(row: dict) -> str:
    names = dict(
        BLOCK_M="M", BLOCK_N="N", num_warps="w", num_stages="s", maxnreg="r", num_splits="/"
    )
    return " ".join(f"{short}{row[name]}" for name, short in names.items())


def table(rows: list[dict]) -> str:
    """Microseconds by variant and shape, a star beside the least, "!" beside what is wrong."""
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    limits = {row["shape"]: row["limit_us"] for row in rows}
    least = {
        shape: min(
            (row["us"] for row in rows if row["shape"] == shape and _is_right(row)), default=0
        )
        for shape in shapes
    }
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        text = "failed"
        if "us" in row:
            is_least = row["us"] == least[row["shape"]]
            text = f"{row['us']:.2f}{'*' if is_least else ''}{'' if _is_right(row) else '!'}"
        lines.setdefault(name_of(row), {})[row["shape"]] = text
    lines["limit"] = {shape: f"{limits[shape]:.2f}" for shape in shapes}
    lines["share of it"] = {
        shape: f"{limits[shape] / least[shape]:.0%}" for shape in shapes if least[shape]
    }
    body = [[name, *(own.get(shape, "") for shape in shapes)] for name, own in lines.items()]
    return tabulate(body, ["", *(shape.replace(", ", ",\n") for shape in shapes)])


def _is_right(row: dict) -> bool:
    return "us" in row and row["error"] <= TOLERANCE


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="stop after so long")
    parser.add_argument("--dry-run", action="store_true", help="compile one variant, time nothing")
    options = parser.parse_args()
    start = time.perf_counter()
    if options.dry_run:
        shape = SHAPES[0]
        compile_one((shape, *variants_for(shape)[0]))
        return
    compile_all(SHAPES)
    print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
    rows: list[dict] = []
    try:
        with torch.inference_mode():
            for row in swept(SHAPES, torch.device("cuda"), start + options.seconds):
                rows.append(row)
                print(row["shape"], name_of(row), row.get("us"), row.get("failed", ""), flush=True)
    finally:
        file = results_folder("cuda") / "attention-sweep.json"
        file.write_text(json.dumps(rows, indent=1) + "\n")
        print(table(rows), flush=True)


if __name__ == "__main__":
    main()
