"""How long all layers of a decoder take in one launch, by machine code and bytes, without a GPU.

    python -m benchmarks.gpu.layers_time

A part of a layer takes the time in which a number of one block comes to another, EXCHANGE_US, and the cycles
of a warp from its last number before to its last one behind (`sass`), or of all instructions that a scheduler
of its multiprocessor issues. Meanwhile the copy engine reads weights at the rate of one kernel in `forecast`,
so layers take the longer of both sums. Beside them the kernel begins once, waits for its first
weights, and runs each line of code for the first time. How often a loop turns follows from the sizes.

A step has the layers, the logits and the selection, and the other kernels as `forecast` estimates them. Rows
are of one beam of 5. The selection begins when all blocks have met, and takes the cycles of one block behind
it; how often its loops turn is counted in its emulation.
The table goes to layers-time.json, in $OUT if that is set, else in benchmarks/results/. It needs nvcc.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from benchmarks.gpu import emulated_lines, forecast, sass
from benchmarks.gpu.code_time import CYCLES_PER_US, LINE_CYCLES, SCHEDULERS, START_US
from benchmarks.gpu.count_kernels import MULTIPROCESSORS
from benchmarks.gpu.sass import Instruction
from benchmarks.journal import Journal, results_folder
from benchmarks.tools.data import ROOT
from pybeam.inspect.work import MACHINES, Network

SOURCES = ROOT / "csrc" / "cuda"
KERNEL = "decoder_layers"
DTYPE, SOURCES_OF_STEP = "bfloat16", 1
# until a number that one block has stored is there in another: an exchange of this kind in Triton made parts
# 0.2 µs shorter than a barrier did, which took 1.12 on an H100 with 132 programs
EXCHANGE_US = 0.9
# until all blocks have met, as that barrier did
MEETING_US = 1.12
# kernels beside it: rows and plan, commit
BOOKS = 2
# of a block
WARPS, LINES, PACK, MOST_GROUPS = 8, 8, 32, 8
# of a ring, by the packs of a warp, in 227 kB of shared memory; a test compares them with those of a launch
RING_STAGES = {1: 32, 2: 19, 4: 10}

# products by name: columns and inputs in widths or inner widths, and whether a norm stands before
PRODUCTS = {
    "queries, keys and values": ("3d", "d", True),
    "their output": ("d", "d", False),
    "queries of sources": ("d", "d", True),
    "output of sources": ("d", "d", False),
    "inner layer": ("f", "d", True),
    "its output": ("d", "f", False),
}
# the operator that a file or a function belongs to
PART_OF = {
    "layers_product.cuh": "Products()",
    "layers_norm.cuh": "Products()",
    "leave_logits": "Products()",
    "layers_attention.cuh": "Attention()",
}
ATTENTIONS = {"attention to hypotheses": "own", "attention to sources": "source"}


@dataclass(frozen=True)
class Code:
    """The kernel of one number of packs, and the functions of its sources."""

    code: list[Instruction]
    functions: dict[str, list[tuple[str, int, int]]]

    def names(self, one: Instruction) -> list[str]:
        """The functions around an instruction, the innermost first."""
        found = []
        for place in one.places:
            for name, first, last in self.functions.get(Path(place.file).name, []):
                if first <= place.line <= last:
                    found.append(name)
        # nvcc forgets some of the lines from which code was called
        around = {Path(place.file).name for place in one.places} | set(found)
        parts = {part for inner, part in PART_OF.items() if inner in around}
        return found + sorted(parts - set(found))

    @cached_property
    def named(self) -> list[list[str]]:
        return [self.names(one) for one in self.code]

    @property
    def num_lines(self) -> int:
        return math.ceil(self.code[-1].address / sass.LINE_BYTES)

    def cycles_of_choice(self, lines: emulated_lines.Lines) -> int:
        """Cycles of the block that finds the survivors of a beam, when it knows that it may."""

        def times(one: Instruction) -> float | None:
            names = self.names(one)
            if "finish_beam" not in names:
                # loops around it turn once
                return float(one.name.startswith("BRA"))
            inner = replace(one, places=one.places[: names.index("finish_beam") + 1])
            return lines(inner)

        number = {i for i, names in enumerate(self.named) if "finish_beam" in names}
        walked = sass.timeline(self.code, times, 0)
        return sum(cycles for i, _, cycles in walked if i in number)

    def cycles(self, part: str, turns: dict[str, int]) -> int:
        """Cycles from the last number before a part to its last one behind.

        Args:
            part: the class whose operator is the part.
            turns: how often functions run; others run once.
        """
        number = {id(one): names for one, names in zip(self.code, self.named, strict=True)}

        def times(one: Instruction) -> float:
            names = number[id(one)]
            if f"{part}()" not in names:
                # loops around the part turn once
                return float(one.name.startswith("BRA"))
            found = [turns.get(name, 1) for name in names]
            return 0 if 0 in found else max(found)

        begin = end = first = issued = last_issued = 0
        for i, at, cycles in sass.timeline(self.code, times, 0):
            names, one = self.named[i], self.code[i]
            if f"{part}()" not in names:
                continue
            issued += 1
            if not begin and "absence" in names:
                begin, first = at, issued
            if one.name.startswith("ST.E") or one.name.startswith("STG"):
                end, last_issued = at + cycles, issued
        return max(end - begin, (last_issued - first) * WARPS // SCHEDULERS)


def functions_of(path: Path) -> list[tuple[str, int, int]]:
    """Names of functions of a file, and their first and last lines; an operator has the name of its class."""
    lines = path.read_text("utf-8").splitlines()
    found, around = [], ""
    for i, line in enumerate(lines, start=1):
        if kind := re.match(r"(?:class|struct) (\w+)", line):
            around = kind[1]
        name = re.search(r"^( {4})?__device__ .*?(operator\(\)|\w+)\(", line)
        if name is None:
            continue
        ends = range(i, len(lines) + 1)
        close = (name[1] or "") + "}"
        last = i if line.endswith("}") else next(n for n in ends if lines[n - 1].startswith(close))
        found.append((f"{around}()" if name[2] == "operator()" else name[2], i, last))
    return found


def compiled(packs: int, folder: Path) -> Code:
    """The kernel in bfloat16 for rows of so many packs a warp."""
    cubin = folder / f"{KERNEL}.cubin"
    if not cubin.exists():
        target = "-gencode=arch=compute_90a,code=sm_90a"
        command = ["nvcc", "-std=c++20", "-O3", "-lineinfo", "-cubin", target, "-o", str(cubin)]
        subprocess.run([*command, str(SOURCES / f"{KERNEL}.cu")], check=True)
    codes = sass.disassembled(cubin)
    [code] = [own for name, own in codes.items() if f"BFloat16NumbersELi{packs}E" in name]
    files = [*SOURCES.glob("*.cuh"), *SOURCES.glob("*.cu")]
    return Code(code, {path.name: functions_of(path) for path in files})


def turns_of_product(
    columns: int, inputs: int, has_norm: bool, packs: int, are_logits: bool = False
) -> dict[str, int]:
    """How often functions run in a block that has most columns, with a ReLU where there is an activation."""
    groups = math.ceil(columns / LINES / MULTIPROCESSORS)
    pairs, chunks = math.ceil(groups / 2), math.ceil(inputs / (WARPS * packs * PACK))
    norm = dict.fromkeys(("normalise", "leave_moments"), int(has_norm))
    often = {"add_products": pairs * chunks, "leave_partial": pairs, "weights_of": pairs * chunks}
    once = {"keep_normed": 0, "activated": 0, "embedded": 0, "leave_logits": int(are_logits)}
    return {**norm, **often, **once, "load": chunks, "await_all": chunks}


def parts(network: Network, code: Code, packs: int) -> Iterator[tuple[str, int]]:
    """Parts of a layer in order, and their cycles."""
    sizes = {"3d": 3 * network.width, "d": network.width, "f": network.ffn}
    attentions = iter(ATTENTIONS.items())
    for name, (columns, inputs, has_norm) in PRODUCTS.items():
        turns = turns_of_product(sizes[columns], sizes[inputs], has_norm, packs)
        yield name, code.cycles("Products", turns)
        if name.startswith("queries"):
            kind, of = next(attentions)
            none = {"list_nodes": 0, "ask": 0, "await_rows": int(of == "own")}
            yield kind, code.cycles("Attention", none)


def packs_of(width: int) -> int:
    """Packs of a warp in a row, as `plan_layers` chooses them."""
    return next(packs for packs in (1, 2, 4) if width <= WARPS * PACK * packs)


def rest_us() -> float:
    """Microseconds of the kernels beside this one, by the constants of `forecast`."""
    # between these and this one, and from the report to the next step
    return BOOKS * forecast.KERNEL_US["books"] + 3 * forecast.GAP_US


def bytes_of_layer(network: Network) -> int:
    d = network.width
    return forecast.BYTES[DTYPE] * (6 * d * d + 2 * d * network.ffn)


def ring_bytes(packs: int, network: Network) -> int:
    """The weights that all blocks hold in shared memory at a time."""
    chunk = WARPS * packs * PACK
    kept = forecast.BYTES[DTYPE] * LINES * chunk
    return MULTIPROCESSORS * kept * RING_STAGES[packs]


def rows_of(name: str, case: str, folder: Path) -> Iterator[dict]:
    network = forecast.NETWORKS[name]
    packs = packs_of(network.width)
    code = compiled(packs, folder)
    chain = 0.0
    for part, cycles in parts(network, code, packs):
        us = EXCHANGE_US + cycles / CYCLES_PER_US
        chain += us
        yield {"case": case, "system": part, "cycles": cycles, "µs": round(us, 2)}
    # logits: rounds of as many groups as a block adds at once
    groups = math.ceil(network.vocabulary / LINES / MULTIPROCESSORS)
    columns = min(groups, MOST_GROUPS) * LINES * MULTIPROCESSORS
    turns = turns_of_product(columns, network.width, True, packs, are_logits=True)
    cycles = code.cycles("Products", turns)
    rounds = math.ceil(groups / MOST_GROUPS)
    first = EXCHANGE_US + cycles / CYCLES_PER_US
    yield {"case": case, "system": "logits, first round", "cycles": cycles, "µs": round(first, 2)}
    lines = emulated_lines.of_layers(network.vocabulary, folder)
    own = code.cycles_of_choice(lines)
    choice = MEETING_US + own / CYCLES_PER_US
    yield {"case": case, "system": "survivors of a beam", "cycles": own, "µs": round(choice, 2)}
    # a row's embedding is behind its token
    begin = START_US + forecast.COLD_US + sass.LATENCY["LDGSTS|LDG|LD[.]"] / CYCLES_PER_US
    begin += code.num_lines * LINE_CYCLES[case, SOURCES_OF_STEP] / CYCLES_PER_US
    for gpu in ("H100", "H200"):
        rate = MACHINES[gpu].bytes_per_us * forecast.ONE_KERNEL_READ_SHARE
        read = bytes_of_layer(network) / rate
        layers = network.layers * max(chain, read)
        # while blocks wait for one another, the copy engine has gone ahead
        ahead = min(ring_bytes(packs, network), network.layers * max(chain - read, 0.0) * rate)
        bytes_left = forecast.BYTES[DTYPE] * network.width * network.vocabulary - ahead
        logits = first + max(bytes_left / rate, (rounds - 1) * cycles / CYCLES_PER_US)
        yield {
            "case": f"{case}, {gpu}",
            "system": "a step",
            "a layer, by its chain, µs": round(chain, 1),
            "by its bytes, µs": round(read, 1),
            "layers, µs": round(layers, 1),
            "logits, µs": round(logits, 1),
            "survivors, µs": round(choice, 1),
            "µs": round(begin + layers + logits + choice + rest_us(), 1),
        }


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    journal = Journal(results_folder("cpu"), "layers-time", ("case", "system"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, case in (("3 layers of 256", "example"), ("6 layers of 1024", "widened")):
            rows += list(rows_of(name, case, Path(folder)))
    for row in rows:
        journal.add(row)
    journal.finish(rows)


if __name__ == "__main__":
    main()
