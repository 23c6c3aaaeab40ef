"""How often each line of a kernel in CUDA C++ runs, counted by gcov in its emulation on a CPU.

    python -m benchmarks.gpu.emulated_lines LIBRARY VOCABULARY [BEAMS]

runs the emulation of `select` in LIBRARY for one of so many beams of 5, as a step asks for it, or with 0
BEAMS that of `select_peaked` for one; without BEAMS that of `decoder_layers`, for one small layer. gcov's
counts are written when it ends.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.gpu.count_kernels import MULTIPROCESSORS
from benchmarks.gpu.sass import Instruction
from benchmarks.tools.data import ROOT
from pybeam.contracts import Finishing, SelectOptions
from pybeam.engine.buckets import bucket

SELECT = ROOT / "tests" / "ops" / "cuda_on_cpu" / "select.cpp"
LAYERS = ROOT / "tests" / "ops" / "cuda_resident" / "layers.cpp"
FLAGS = ("-std=c++20", "-shared", "-fPIC", "-w", "-O0", "--coverage", "-U_FORTIFY_SOURCE")
WIDTH = 5
# of `peaked_product` where rows are few, and there are many columns
TILE_COLUMNS = 128


class Lines:
    """How often a thread of the last block to arrive runs an instruction, by its line and the calls of it.

    A function that is called in two places runs as often in either.

    Attributes:
        kernel: the variant that has run, by its name in the library.
    """

    def __init__(self, files: list[dict]) -> None:
        self._times: dict[tuple[str, int], float] = {}
        self._function: dict[tuple[str, int], str] = {}
        self.kernel = ""
        for file in files:
            names = [one["name"] for one in file["functions"] if one["execution_count"]]
            found = [name for name in names if re.search(r"\d+select_\w*kernel.*ParamsE$", name)]
            self.kernel = found[0] if found else self.kernel
            name = Path(file["file"]).name
            # last comes the variant that has run, and where a lambda begins the function around it
            for line in sorted(file["lines"], key=lambda line: (line["count"] > 0, -line["count"])):
                place = name, line["line_number"]
                calls, title = _function_of(line, file["functions"])
                self._times[place] = line["count"] / max(calls, 1)
                self._function[place] = title
            self._count_turns(name, Path(file["file"]).read_text("utf-8").splitlines())

    def _count_turns(self, name: str, source: list[str]) -> None:
        """A loop has as many turns as its first line; its own line runs once more."""
        for i, text in enumerate(source, start=1):
            if not (text.strip().startswith("for (") and text.endswith("{")):
                continue
            indent = len(text) - len(text.lstrip())
            end = next(n for n in range(i, len(source)) if source[n].startswith(" " * indent + "}"))
            inner = [
                self._times[name, n + 1]
                for n in range(i, end)
                if re.match(rf" {{{indent + 4}}}(?!for )\S", source[n])
                and (name, n + 1) in self._times
            ]
            if (name, i) in self._times:
                self._times[name, i] = inner[0] if inner else self._times[name, i] - 1

    def __call__(self, one: Instruction) -> float | None:
        places = [(Path(place.file).name, place.line) for place in one.places]
        if not places or any(place not in self._times for place in places):
            return None
        *inner, kernel = (self._times[place] for place in places)
        # few of the blocks come to the end, and the last one does all that they do
        return math.prod(inner) * (kernel > 0)

    def functions(self, one: Instruction) -> list[str]:
        """The functions around it, the kernel last."""
        places = [(Path(place.file).name, place.line) for place in one.places]
        return [self._function.get(place, "") for place in places]


def _function_of(line: dict, functions: list[dict]) -> tuple[int, str]:
    """How often the function of a line was called, and its name."""
    own = [one for one in functions if one["name"] == line.get("function_name")]
    if not own:
        # gcov names no function for lines of a lambda, and says where the lambda begins
        lambdas = [one for one in functions if one["start_line"] == one["end_line"]]
        before = [one for one in lambdas if one["start_line"] < line["line_number"]]
        nearest = max((one["start_line"] for one in before), default=0)
        own = [one for one in before if one["start_line"] == nearest]
    calls = max((one["execution_count"] for one in own), default=0)
    return calls, own[0]["demangled_name"] if own else ""


def of_select(num_beams: int, vocab_size: int, folder: Path) -> Lines:
    """The lines of `select` for random logits; the emulation is compiled in the folder."""
    return _counted(SELECT, folder, vocab_size, num_beams)


def of_peaks(vocab_size: int, folder: Path) -> Lines:
    """The lines of `select_peaked` for a beam among random logits; as `of_select`."""
    return of_select(0, vocab_size, folder)


def of_layers(vocab_size: int, folder: Path) -> Lines:
    """The lines of `decoder_layers` for random logits of one beam; as `of_select`."""
    return _counted(LAYERS, folder, vocab_size)


def _counted(source: Path, folder: Path, *numbers: int) -> Lines:
    library = folder / f"{source.stem}.so"
    if not library.exists():
        command = ["g++", *FLAGS, f"-I{source.parent}", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
    for old in folder.glob("*.gcda"):
        old.unlink()
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    given = [sys.executable, "-m", __name__, str(library), *map(str, numbers)]
    subprocess.run(given, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=True)
    [counted] = folder.glob("*.gcda")
    command = ["gcov", "--json-format", "--stdout", str(counted)]
    text = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    files = json.loads(text)["files"]
    return Lines([file for file in files if "csrc/cuda" in file["file"]])


def run_select(library: str, vocab_size: int, num_beams: int) -> None:
    from support.cuda_on_cpu import Emulated, Peaked, declared

    kernel = declared(ctypes.CDLL(library))
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(bucket(WIDTH), vocab_size, generator=generator)
    offset = torch.tensor([0, WIDTH], dtype=torch.int32)
    width = torch.tensor([WIDTH], dtype=torch.int32)
    options = SelectOptions(
        capacity=2 * WIDTH,
        eos_ids=(2,),
        finishing=int(Finishing.REFILL),
        # who has peaks looks for more of them behind a ban, which few steps have
        ban_eos=torch.full((1,), num_beams > 0),
    )
    score = -torch.rand(WIDTH, generator=generator)
    backend: Emulated | Peaked = Peaked(kernel, TILE_COLUMNS, runs_backwards=False)
    if num_beams:
        # one beam takes the variant of many, if it finds so few multiprocessors
        backend = Emulated(kernel, max(1, MULTIPROCESSORS // num_beams), runs_backwards=False)
    # rows behind the last entry are padding
    backend.select(logits.bfloat16(), score, offset, width, options)


def run_layers(library: str, vocab_size: int) -> None:
    from support.decoder_layers import LayersShape, Selected, layers_case
    from support.resident_layers import Resident, declared

    torch.manual_seed(0)
    rows, nodes, tokens = [WIDTH], [36], [30]
    case = layers_case(LayersShape(64, 32), 1, rows, nodes, tokens, num_logits=vocab_size)
    offset = torch.tensor([0, WIDTH], dtype=torch.int32)
    width = torch.tensor([WIDTH], dtype=torch.int32)
    selected = Selected(
        *(-torch.rand(WIDTH), offset, width),
        ban_eos=torch.ones(1, dtype=torch.bool),
        finishing=int(Finishing.REFILL),
        capacity=2 * WIDTH,
    )
    Resident(declared(ctypes.CDLL(library)), MULTIPROCESSORS).chosen(case, selected)


def main() -> None:
    library, *numbers = sys.argv[1], *map(int, sys.argv[2:])
    (run_select if len(numbers) > 1 else run_layers)(library, *numbers)


if __name__ == "__main__":
    main()
