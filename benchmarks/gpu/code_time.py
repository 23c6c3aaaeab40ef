"""How long each kernel of a step takes by its machine code, without a GPU.

    python -m benchmarks.gpu.code_time [--as-measured]

A kernel takes START_US, and the cycles of one warp from its first instruction to its last (`sass`), once for
each wave of programs. A multiprocessor holds as many programs of a wave as its registers, warps and shared
memory allow. How often a loop turns is counted in interpreters, for one beam of 5 behind 16 steps. The rate
of the memory is not in the model, so products of the larger network are left out.

With `--as-measured` the kernels are those that GPUs have timed: rows have these times beside the estimate,
and what the rule of START_US and LOAD_US of `roles` says, or the constants of `forecast`. Those here were
fitted to these rows.
The table goes to code-time.json, in $OUT if that is set, else in benchmarks/results/. It needs nvcc and g++.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

import pybeam
from benchmarks.gpu import emulated_lines, forecast, interpreted_lines, roles, sass
from benchmarks.gpu.count_kernels import META, MULTIPROCESSORS, many_multiprocessors
from benchmarks.gpu.interpreted_lines import LONGEST, SOURCE_TOKENS
from benchmarks.gpu.needed_kernels import NETWORKS, ONE_LAYER
from benchmarks.gpu.one_step import OneStep
from benchmarks.gpu.sass import Instruction, Times
from benchmarks.journal import RESULTS, Journal, results_folder
from benchmarks.tools.data import ROOT
from pybeam.backends import triton as triton_backend
from pybeam.engine.buckets import bucket
from pybeam.inspect.gpu_kernels import role_of
from tests.support import aot

CAPABILITY = 90
DTYPE = "bfloat16"
CASES = [(name, num, 5) for name in NETWORKS for num in (1, 64)]
# of a kernel beside its instructions, and the clock of a card that has little to do
START_US, CYCLES_PER_US = 1.1, 1980.0
# that a warp waits for a line of code: where programs are few or many, in a network whose weights leave code
# in the caches, and in one whose weights do not
LINE_CYCLES = {("example", 1): 5, ("example", 64): 15, ("widened", 1): 15, ("widened", 64): 35}
# of a multiprocessor
REGISTERS, WARPS, SHARED_BYTES, MOST_PROGRAMS, SCHEDULERS = 65536, 64, 227 << 10, 32, 4
SELECT, PEAKED = "pybeam::cuda::select_kernel", "pybeam::cuda::select_peaked_kernel"
THREADS = 256
# the H200 has timed earlier kernels
GPUS = {"H100": "nvidia-h100-80gb-hbm3"}


@dataclass(frozen=True)
class Kernel:
    """A kernel as a step launches it.

    Attributes:
        times: how often an instruction runs.
        line_cycles: that a warp waits for a line of code.
    """

    name: str
    programs: int
    warps: int
    registers: int
    shared: int
    code: list[Instruction]
    times: Times
    line_cycles: int

    @property
    def time(self) -> sass.Time:
        """That of one program."""
        return sass.time_of(self.code, self.times, self.line_cycles)

    @property
    def at_once(self) -> int:
        """How many programs a multiprocessor holds."""
        registers = math.ceil(self.registers / 8) * 8 * 32 * self.warps
        shared = SHARED_BYTES // max(self.shared, 1)
        return min(REGISTERS // registers, WARPS // self.warps, shared, MOST_PROGRAMS)

    def row(self) -> dict:
        time = self.time
        waves = math.ceil(self.programs / (MULTIPROCESSORS * self.at_once))
        each = math.ceil(self.programs / MULTIPROCESSORS)
        # all that the schedulers of one multiprocessor issue
        issue = each * self.warps * time.issued / SCHEDULERS
        cycles = time.cycles + (waves - 1) * self.cycles_of_many(time)
        return {
            "programs": self.programs,
            "at once": self.at_once,
            "waves": waves,
            "instructions": time.issued,
            "cycles": time.cycles,
            "µs": round(START_US + max(cycles, issue) / CYCLES_PER_US, 2),
        }

    def cycles_of_many(self, time: sass.Time) -> int:
        """Cycles of a program that is not the last one; where the last one alone goes on, up to there."""
        if self.name != SELECT:
            return time.cycles
        assert isinstance(self.times, emulated_lines.Lines)
        return sum(
            cycles
            for i, cycles in time.of.items()
            if not any("finish_beam" in name for name in self.times.functions(self.code[i]))
        )


def once(one: Instruction) -> float | None:
    """How often an instruction runs in a kernel without loops."""
    return None


def launched(name: str, num_sources: int, width: int) -> list[aot.Launch]:
    """The Triton kernels of a step of two layers, in order."""
    from tests.support.tiny_models import save_tiny_model

    sizes = {**ONE_LAYER, **NETWORKS[name], "decoder_layers": 2}
    with (
        tempfile.TemporaryDirectory() as folder,
        torch.inference_mode(),
        many_multiprocessors(),
        aot.recording(lambda launch: None),
    ):
        save_tiny_model(Path(folder), "m2m_100", **sizes)
        model = pybeam.load_model(folder, device=META, dtype=DTYPE)
        algorithm = pybeam.fixed_beam(width, min_length=LONGEST - 2, max_length=LONGEST)
        tokens = [[5] * SOURCE_TOKENS] * num_sources
        step = OneStep(model, algorithm, triton_backend, tokens, LONGEST)
        step()
        launches: list[aot.Launch] = []
        with aot.recording(launches.append):
            step()
    return launches


def compiled(launch: aot.Launch, times: Times, line_cycles: int) -> Kernel:
    made = aot.compile_for(launch, CAPABILITY)
    name = launch.kernel.__name__
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(made.asm["cubin"])
        [code] = sass.disassembled(path).values()
    assembly = aot.assemble(launch, CAPABILITY)
    programs, warps = math.prod(launch.grid), made.metadata.num_warps
    shared = assembly.shared
    return Kernel(name, programs, warps, assembly.registers, shared, code, times, line_cycles)


# what a block of `select` is at, by a function around the instruction
PHASES = {
    "reads a slice of a row": ("Slice<", "leave_peaks"),
    "finds its entry and beam": ("entry_of", "beam_of", "span_of", "num_arrivals"),
    "leaves its sums and arrives": ("is_last_to_arrive",),
    "sums of all slices": ("combine_totals",),
    "a bound for the best": ("bound_entries",),
    "lists what reaches it": ("list_candidates", "list_best_of_all"),
    "ranks the list": ("rank_candidates",),
    "survivors": ("finish_beam",),
    "other": ("",),
}


def phases(kernel: Kernel) -> dict[str, float]:
    """Microseconds of one block of `select` by phase, the last one of a beam."""
    assert isinstance(kernel.times, emulated_lines.Lines)
    found = dict.fromkeys(PHASES, 0.0)
    for i, cycles in kernel.time.of.items():
        around = " ".join(kernel.times.functions(kernel.code[i]))
        phase = next(one for one, names in PHASES.items() if any(name in around for name in names))
        found[phase] += cycles / CYCLES_PER_US
    return {phase: round(us, 2) for phase, us in found.items()}


def compile_select(folder: Path) -> None:
    """Write select.cubin and select_peaked.cubin to the folder, with the lines of their sources."""
    target = "-gencode=arch=compute_90a,code=sm_90a"
    command = ["nvcc", "-std=c++20", "-O3", "-lineinfo", "-cubin", target, "-o"]
    for name in ("select", "select_peaked"):
        source = ROOT / "csrc" / "cuda" / f"{name}.cu"
        subprocess.run([*command, str(folder / f"{name}.cubin"), str(source)], check=True)


def select_of(case: tuple[str, int, int], folder: Path, from_peaks: bool = False) -> Kernel:
    """The selection in CUDA C++; `folder` has its cubin."""
    network, num_beams, width = case
    vocabulary = NETWORKS[network]["vocab_size"]
    cubin = folder / ("select_peaked.cubin" if from_peaks else "select.cubin")
    if from_peaks:
        times = emulated_lines.of_peaks(vocabulary, folder)
    else:
        times = emulated_lines.of_select(num_beams, vocabulary, folder)
    codes = sass.disassembled(cubin)
    # the part of its name that no compiler makes up
    variant = times.kernel[times.kernel.index("select_") :]
    [name] = [name for name in codes if name.endswith(variant)]
    usage = aot._cuobjdump("-res-usage", cubin)
    found = re.search(rf"{name}.*?REG:(\d+).*?SHARED:(\d+)", usage, re.S)
    assert found is not None, usage
    num_blocks = num_beams
    if not from_peaks:
        [vectors] = re.findall(r"ELi(\d)E", name)
        # a vector has 8 numbers of 16 bits
        slices = math.ceil(vocabulary / (THREADS * 8 * int(vectors)))
        num_blocks += bucket(num_beams * width) * slices
    return Kernel(
        PEAKED if from_peaks else SELECT,
        num_blocks,
        THREADS // 32,
        *map(int, found.groups()),
        codes[name],
        times,
        LINE_CYCLES[network, num_beams],
    )


def kernels_of(
    case: tuple[str, int, int], folder: Path, lines: list[tuple[str, interpreted_lines.Lines]]
) -> Iterator[tuple[Kernel, list[int], int]]:
    """Kernels of a step with other code each, their places in launches of that name, and chained loads."""
    network, num_sources, _ = case
    places: dict[tuple, list[int]] = defaultdict(list)
    first: dict[tuple, tuple[aot.Launch, Times]] = {}
    numbers = Counter[str]()
    for launch in launched(*case):
        kernel = launch.kernel.__name__
        counted = [times for other, times in lines if other == kernel]
        places[launch.key].append(numbers[kernel])
        # layers are alike, and the attentions of a layer are not
        times = counted[numbers[kernel] % len(counted)] if counted else once
        first.setdefault(launch.key, (launch, times))
        numbers[kernel] += 1
    for key, (launch, times) in first.items():
        kernel = launch.kernel.__name__
        if kernel == "select_kernel":
            yield select_of(case, folder), [0], 0
        elif (kernel, network) != ("product_kernel", "widened"):
            made = compiled(launch, times, LINE_CYCLES[network, num_sources])
            yield made, places[key], aot.assemble(launch, CAPABILITY).chained_loads


def timed(gpu: str, case: str, kernel: str, places: list[int]) -> tuple[float, str]:
    """The median time of these launches of a kernel, and the part of a step of the first."""
    path = RESULTS / GPUS[gpu] / "gpu-step.json"
    rows = json.loads(path.read_text("utf-8"))["rows"]
    [row] = [row for row in rows if (row["case"], row["system"]) == (case, "step")]
    own = [one for one in row["listed"] if one["kernel"] == kernel]
    found = [own[place] for place in places if place < len(own)]
    return median(one["µs"] for one in found), found[0].get("part", "")


def fitted(case: tuple[str, int, int], kernel: str, part: str, chained_loads: int) -> float:
    """Microseconds of a kernel on an H200 by the constants of `roles` and `forecast`."""
    name, num_sources, width = case
    network = forecast.NETWORKS["3 layers of 256" if name == "example" else "6 layers of 1024"]
    if role_of(kernel) in ("books", "norm"):
        return roles.START_US + roles.LOAD_US * chained_loads
    own = forecast.parts(network, num_sources, width, DTYPE, launched=True)
    [us, *_] = [one.us(forecast.MACHINES["H200"], DTYPE) for one in own if one.name == part]
    return us


def rows_of(
    case: tuple[str, int, int], folder: Path, lines: list, is_measured: bool
) -> Iterator[dict]:
    name, num_sources, width = case
    title = f"{name}, {num_sources}x{width}"
    numbers = Counter[str]()
    for kernel, places, chained_loads in kernels_of(case, folder, lines):
        numbers[kernel.name] += 1
        number = f", {numbers[kernel.name]}" if numbers[kernel.name] > 1 else ""
        row = {"case": title, "system": kernel.name + number} | kernel.row()
        if is_measured:
            row["case"] += ", as measured"
            for gpu in GPUS:
                us, part = timed(gpu, title, kernel.name, places)
                row |= {f"{gpu}, µs": us, f"off by, {gpu}, %": round(100 * (row["µs"] / us - 1))}
            us = fitted(case, kernel.name, part, chained_loads)
            row |= {"constants, µs": round(us, 2)}
        yield row
        if kernel.name == SELECT:
            yield from by_phase(kernel, f"select, {row['case']}")
    if not is_measured:
        # behind a product that leaves peaks
        kernel = select_of(case, folder, from_peaks=True)
        yield {"case": f"peaks, {title}", "system": kernel.name} | kernel.row()
        yield from by_phase(kernel, f"select from peaks, {title}")


def by_phase(kernel: Kernel, case: str) -> Iterator[dict]:
    for phase, us in phases(kernel).items():
        yield {"case": case, "system": phase, "µs": us}


def summary(rows: list[dict]) -> Iterator[dict]:
    """How far off the estimates and the constants are, by role."""
    compared = [row for row in rows if "constants, µs" in row]
    for role in ("books", "norm", "attention", "product", "select"):
        own = [row for row in compared if role_of(row["system"]) == role]
        found = {"case": "as measured", "system": role, "kernels": len(own)}
        for name, column in (("code", "µs"), ("constants", "constants, µs")):
            off = [abs(row[column] / row[f"{gpu}, µs"] - 1) for row in own for gpu in GPUS]
            found[f"{name}: median off by, %"] = round(100 * median(off))
            found[f"{name}: at most, %"] = round(100 * max(off))
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--as-measured", action="store_true", help="beside what GPUs have taken")
    options = parser.parse_args()
    journal = Journal(results_folder("cpu"), "code-time", ("case", "system"))
    lines = interpreted_lines.of_step()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        compile_select(folder)
        for case in CASES:
            for row in rows_of(case, folder, lines, options.as_measured):
                journal.add(row)
    if options.as_measured:
        for row in list(summary(journal.own_rows)):
            journal.add(row)
    journal.finish()


if __name__ == "__main__":
    main()
