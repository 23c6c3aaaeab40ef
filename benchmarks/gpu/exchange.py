"""How long an exchange between all blocks of a launch takes, in ways in which `decoder_layers` could make it.

    python -m benchmarks.gpu.exchange [--compile-only]

The layers of a step in one launch (`PYBEAM_PERSISTENT=1`) wait eight times a layer until numbers of one block
are in all others, so a step of few rows takes as long as its exchanges. Each turn of `exchange.cu` is such an
exchange of 5 rows; a row of the result has the time of one, with the sum of what was read and a barrier of
the block. Rows go to exchange.json, in $OUT if that is set, else in benchmarks/results/<gpu>/. It needs nvcc.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.cross_build import CannotBuild, toolkit
from benchmarks.journal import Journal, results_folder

SOURCE = Path(__file__).with_suffix(".cu")


def compiled(folder: Path) -> Path:
    """The program of `exchange.cu`, for GPUs of compute capability 9.0."""
    program = folder / "exchange"
    target = ["-gencode=arch=compute_90a,code=sm_90a", "-cudart=static"]
    command = [toolkit() / "bin" / "nvcc", "-std=c++20", "-O3", *target, "-o", program, SOURCE]
    subprocess.run(list(map(str, command)), check=True)
    return program


def rows_of(output: str) -> Iterator[dict]:
    """The lines of the program as rows of a result."""
    for line in output.splitlines():
        way, width, num_bytes, ns = line.split("\t")
        spread = f"packs {num_bytes} bytes apart"
        yield {"case": f"5 rows of {width}", "system": f"{way}, {spread}", "µs": int(ns) / 1000}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--compile-only", action="store_true", help="run nothing; keeps no file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = compiled(Path(folder))
        except CannotBuild as error:
            sys.exit(str(error))
        if options.compile_only:
            return
        run = subprocess.run([program], check=True, capture_output=True, text=True)
    rows = list(rows_of(run.stdout))
    journal = Journal(results_folder("cuda"), "exchange", ("case", "system"))
    for row in rows:
        journal.add(row)
    journal.finish(rows)


if __name__ == "__main__":
    main()
