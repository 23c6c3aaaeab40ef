"""Compares the machine code that versions of Triton make of the kernels, for an absent sm_90 GPU.

    python -m benchmarks.triton_code [--output FOLDER] [--first N]

Run it once in an environment of each version; rows of other versions stay. A spill is an access to
local memory (LDL, STL).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
import triton

from benchmarks.count_instructions import reading_loop, select_launch
from benchmarks.journal import RESULTS, Journal
from tests.support import aot, triton_launches

CAPABILITY = 90
DTYPES = (torch.float32, torch.bfloat16)
COLUMNS = ("triton", "kernel", "case")


def launches() -> Iterator[tuple[str, aot.Launch]]:
    """The constants that the launchers choose for typical calls, and a name for each."""
    for dtype in DTYPES:
        short = str(dtype).removeprefix("torch.")
        yield short, select_launch(dtype, num_rows=1000)
        # in float32 there is one tile for all
        for rows in (5,) if dtype == torch.float32 else (5, 20, 50):
            for size in (64, 128):
                launch = triton_launches.attention_launch(rows, size, dtype, words=1)
                yield f"{short}, head size {size}, {rows} rows a source", launch
        tensors = [torch.zeros(1000, 512, dtype=dtype)]
        for launch in aot.distinct(triton_launches.gather_launches(tensors, 700)):
            yield f"gather, {short}", launch
        yield f"scatter, {short}", triton_launches.scatter_launch(dtype)
    yield "", triton_launches.backtrace_launch()
    for width in (5, 50):
        for launch in triton_launches.tree_launches(width):
            yield f"width {width}", launch


def measured(case: str, launch: aot.Launch) -> dict:
    assembly = aot.assemble(launch, CAPABILITY)
    row = {
        "triton": triton.__version__,
        "kernel": launch.kernel.__name__,
        "case": case,
        "registers": assembly.registers,
        "stack bytes": assembly.stack,
        "spills": assembly.count(r"\b(LDL|STL)"),
        "shared bytes": assembly.shared,
        "instructions": len(assembly.code),
        "in the longest loop": max((len(loop.instructions) for loop in assembly.loops), default=0),
    }
    if launch.kernel.__name__ == "select_kernel":
        loop = reading_loop(assembly)
        row |= {"in the reading loop": len(loop.instructions), "shuffles in it": loop.count("SHFL")}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--first", type=int, metavar="N", help="so many calls; default: all")
    options = parser.parse_args()
    journal = Journal(options.output, "triton-code", COLUMNS)
    for case, launch in islice(launches(), options.first):
        journal.add(measured(case, launch))
    journal.finish(journal.own_rows)


if __name__ == "__main__":
    main()
