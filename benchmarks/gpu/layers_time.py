"""How long all layers of a decoder take in one launch, by machine code and bytes, without a GPU.

    python -m benchmarks.gpu.layers_time

A part of a layer takes the time in which the numbers of all blocks come to one another, EXCHANGE_US, or the
cycles in which a warp goes from its last number before to where it waits, if those are more; and the cycles
from there to its last number behind (`sass`), or of all instructions that a scheduler of its multiprocessor
issues. Meanwhile the copy engine reads weights at the rate of one kernel in `forecast`, so layers take the
longer of both sums. Beside them the kernel begins once, waits for its first weights, and runs each line of
code for the first time. How often a loop turns follows from the sizes.

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
from typing import NamedTuple

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
# until numbers that blocks have stored are there in all of them, by the numbers of a row: a turn of a program
# from which `exchange.cu` was made took 1.34 and 1.60 µs on an H100, some 0.4 of it its own code by `sass`
EXCHANGE_US = {256: 0.95, 1024: 1.2}
# until the sums of blocks that share a product are there in the one block that adds them: a word went to
# another block and back in 950 to 1,360 cycles on an H100
SHARES_US = 0.34
# until all blocks have met: a barrier of 132 programs of Triton took as long on an H100
MEETING_US = 1.12
# a kernel for a whole forward pass read weights at 0.78 of an H100's rate (Spector et al., Look Ma, No
# Bubbles!, 2025)
ONE_KERNEL_READ_SHARE = 0.78
# kernels beside it: rows and plan, commit
BOOKS = 2
# of a block
WARPS, LINES, PACK, MOST_GROUPS = 8, 8, 32, 8
# of a ring, by the packs of a warp, in 227 kB of shared memory; a test compares them with those of a launch
RING_STAGES = {1: 32, 2: 19, 4: 9}

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
# functions that most layers and blocks do not run, and one of warps that have no column to finish
SELDOM = (
    "ask_for",
    *("first_rows", "keep_states", "state_pair", "EmbeddedRow", "eight", "line_of", "keep_normed"),
    *("ends_of", "leave_pair_of_stages", "activated", "list_nodes", "list_node", "list_stages"),
)


class Cycles(NamedTuple):
    """Cycles of a part: from a block's last number before to where it waits, and from there to its last."""

    before: int
    behind: int


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

    def cycles(self, part: str, turns: dict[str, int]) -> Cycles:
        """Cycles of a turn of the loop over parts.

        Args:
            part: the class whose operator is the part.
            turns: how often functions run; others run once.
        """
        number = {id(one): names for one, names in zip(self.code, self.named, strict=True)}
        often = {**dict.fromkeys(SELDOM, 0), **turns}

        def is_own(one: Instruction) -> bool:
            return f"{part}()" in number[id(one)] or self.is_between_parts(one)

        def times(one: Instruction) -> float:
            if not is_own(one):
                # loops around the part turn once
                return float(one.name.startswith("BRA"))
            found = [often.get(name, 1) for name in number[id(one)]]
            return 0 if 0 in found else max(found, default=1)

        walked = [
            (self.code[i], self.named[i], cycles)
            for i, _, cycles in sass.timeline(self.code, times, 0)
            if is_own(self.code[i])
        ]
        begin = next(i for i, (_, names, _) in enumerate(walked) if "absence" in names)
        stores = [i for i, (one, _, _) in enumerate(walked) if one.name.startswith(("ST.E", "STG"))]
        end = stores[-1] + 1
        behind = sum(cycles for _, _, cycles in walked[begin:end])
        before = sum(cycles for _, _, cycles in walked) - behind
        return Cycles(before, max(behind, (end - begin) * WARPS // SCHEDULERS))

    def is_between_parts(self, one: Instruction) -> bool:
        """Whether it belongs to the loop over the parts of layers, and to no part."""
        first, last = self.loop
        files = [place.line for place in one.places if Path(place.file).name == f"{KERNEL}.cu"]
        names = self.names(one)
        return names[:1] == ["make_layers"] and any(first <= line <= last for line in files)

    @cached_property
    def loop(self) -> tuple[int, int]:
        """The first line of the loop over the parts of layers, and the last."""
        lines = (SOURCES / f"{KERNEL}.cu").read_text("utf-8").splitlines()
        begin = next(i for i, line in enumerate(lines, start=1) if "i <= p.num_layers;" in line)
        end = next(i for i, line in enumerate(lines, start=1) if i > begin and line == "    }")
        return begin, end


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
    chunks = chunks_of(inputs, packs)
    groups = math.ceil(columns / LINES / (MULTIPROCESSORS // chunks))
    pairs = math.ceil(groups / 2)
    norm = dict.fromkeys(("normalise", "leave_moments"), int(has_norm))
    often = dict.fromkeys(("add_products", "weights_of", "leave_partial"), pairs)
    shares = dict.fromkeys(("leave_share", "await_shares"), int(chunks > 1))
    return {**norm, **often, **shares, "next_weights": pairs - 1, "leave_logits": int(are_logits)}


def chunks_of(inputs: int, packs: int) -> int:
    """Blocks that share a product of so many inputs: each has a chunk of them."""
    return math.ceil(inputs / (WARPS * packs * PACK))


def parts(network: Network, code: Code, packs: int) -> Iterator[tuple[str, int, Cycles]]:
    """Parts of a layer in order, the numbers of a row that they wait for, and their cycles."""
    sizes = {"3d": 3 * network.width, "d": network.width, "f": network.ffn}
    attentions = iter(ATTENTIONS.items())
    for name, (columns, inputs, has_norm) in PRODUCTS.items():
        turns = turns_of_product(sizes[columns], sizes[inputs], has_norm, packs)
        yield name, min(sizes[inputs], network.width), code.cycles("Products", turns)
        if name.startswith("queries"):
            kind, of = next(attentions)
            # of a head
            yield (
                kind,
                min(EXCHANGE_US),
                code.cycles("Attention", {"ask": 0, "await_rows": of == "own"}),
            )


def part_us(numbers: int, cycles: Cycles) -> float:
    """Microseconds of a part that waits for so many numbers of a row."""
    exchange = EXCHANGE_US[min(size for size in EXCHANGE_US if size >= numbers)]
    return max(exchange, cycles.before / CYCLES_PER_US) + cycles.behind / CYCLES_PER_US


def named(cycles: Cycles) -> dict[str, int]:
    return {"cycles before": cycles.before, "cycles behind": cycles.behind}


def packs_of(width: int) -> int:
    """Packs of a warp in a row, as `plan_layers` chooses them."""
    return next(packs for packs in (1, 2, 4) if width <= WARPS * PACK * packs)


def rest_us(network: Network) -> float:
    """Microseconds of the kernels beside this one, by machine code, and of the time between them."""
    # between these and this one, and from the report to the next step
    return BOOKS * forecast.books_us(network, SOURCES_OF_STEP) + 3 * forecast.GAP_US


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
    for part, numbers, cycles in parts(network, code, packs):
        us = part_us(numbers, cycles)
        us += SHARES_US * (part == "its output" and chunks_of(network.ffn, packs) > 1)
        chain += us
        yield {"case": case, "system": part, **named(cycles), "µs": round(us, 2)}
    # logits: rounds of as many groups as a block adds at once
    groups = math.ceil(network.vocabulary / LINES / MULTIPROCESSORS)
    columns = min(groups, MOST_GROUPS) * LINES * MULTIPROCESSORS
    turns = turns_of_product(columns, network.width, True, packs, are_logits=True)
    cycles = code.cycles("Products", turns)
    rounds = math.ceil(groups / MOST_GROUPS)
    first = part_us(network.width, cycles)
    yield {"case": case, "system": "logits, first round", **named(cycles), "µs": round(first, 2)}
    lines = emulated_lines.of_layers(network.vocabulary, folder)
    own = code.cycles_of_choice(lines)
    choice = MEETING_US + own / CYCLES_PER_US
    yield {
        "case": case,
        "system": "survivors of a beam",
        "cycles behind": own,
        "µs": round(choice, 2),
    }
    # a row's embedding is behind its token
    begin = START_US + forecast.COLD_US + sass.LATENCY["LDGSTS|LDG|LD[.]"] / CYCLES_PER_US
    begin += code.num_lines * LINE_CYCLES[case, SOURCES_OF_STEP] / CYCLES_PER_US
    for gpu in ("H100", "H200"):
        rate = MACHINES[gpu].bytes_per_us * ONE_KERNEL_READ_SHARE
        read = bytes_of_layer(network) / rate
        layers = network.layers * max(chain, read)
        # while blocks wait for one another, the copy engine has gone ahead
        ahead = min(ring_bytes(packs, network), network.layers * max(chain - read, 0.0) * rate)
        bytes_left = forecast.BYTES[DTYPE] * network.width * network.vocabulary - ahead
        logits = first + max(bytes_left / rate, (rounds - 1) * sum(cycles) / CYCLES_PER_US)
        yield {
            "case": f"{case}, {gpu}",
            "system": "a step",
            "a layer, by its chain, µs": round(chain, 1),
            "by its bytes, µs": round(read, 1),
            "layers, µs": round(layers, 1),
            "logits, µs": round(logits, 1),
            "survivors, µs": round(choice, 1),
            "µs": round(begin + layers + logits + choice + rest_us(network), 1),
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
