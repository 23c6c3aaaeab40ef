"""How long a warp takes for machine code of an sm_90: what waits for what, and how often it runs.

A warp issues in order. The compiler has written into each instruction how many cycles pass before the next
one, and for which of six scoreboards it waits; a load or another instruction of unknown duration sets one
when it is done. So the waits are read, and durations are assumed (`LATENCY`, and that of a line of code).
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

# cycles until a scoreboard is set, by the beginning of an instruction's name. That of a load was fitted with
# what `code_time` fits; chains of loads alone take 262 from an L2 (Luo et al., Dissecting the NVIDIA Hopper
# Architecture through Microbenchmarking, 2025)
LATENCY = {
    "LDGSTS|LDG|LD[.]": 180,
    "ATOMG|ATOM[.]|MEMBAR": 600,
    "ATOMS": 60,
    "LDS|LDSM": 31,
    "LDC|ULDC": 45,
    "HMMA": 33,
    "SHFL|MUFU|S2|R2UR|CS2R|VOTE|REDUX|B2R": 23,
    "[DF]2|I2|DADD|DMUL|DFMA|DSETP|POPC|FLO|BREV": 20,
}
OTHERS = 15
BARRIER = 10
# a warp waits for each line of code that it runs for the first time
LINE_BYTES = 128
NO_SCOREBOARD, SCOREBOARDS = 7, 6

PLACE = re.compile(r'File "([^"]+)", line (\d+)')
LABEL = re.compile(r"^(\.L_\w+):")
TEXT = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?(\S+)(.*?)\s*;\s+/\*")
CONTROL = re.compile(r"^\s+/\*\s*0x([0-9a-f]{16})\s*\*/$")


class Place(NamedTuple):
    """A line of a source file."""

    file: str
    line: int


@dataclass
class Instruction:
    """One instruction.

    Attributes:
        places: its line, and then the lines from which that code was called.
        stall: cycles until the next one may issue.
        sets: the scoreboard that it sets when it is done.
        frees: the scoreboard that it sets when it has read its operands.
        waits: bits of the scoreboards that it waits for.
        target: number of the instruction to which it jumps.
    """

    address: int
    guard: str
    name: str
    places: tuple[Place, ...]
    stall: int = 1
    sets: int = NO_SCOREBOARD
    frees: int = NO_SCOREBOARD
    waits: int = 0
    target: int | None = None

    @property
    def latency(self) -> int:
        for names, cycles in LATENCY.items():
            if re.match(names, self.name):
                return cycles
        return OTHERS


def disassembled(cubin: Path) -> dict[str, list[Instruction]]:
    """The code of every function of a file, by name."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    command = [str(tool), "-c", "-gi", "-hex", str(cubin)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.M)
    return {name: parsed(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def parsed(text: str) -> list[Instruction]:
    """The instructions that `nvdisasm -gi -hex` has written, each in two lines."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    jumps: list[tuple[Instruction, str]] = []
    places: list[Place] = []
    is_open = False
    for line in text.splitlines():
        if "//##" in line:
            [(file, number), *_] = PLACE.findall(line)
            places = [*(places if is_open else []), Place(file, int(number))]
            is_open = True
        elif found := LABEL.match(line):
            labels[found[1]] = len(code)
        elif found := TEXT.match(line):
            address, guard, name, rest = found.groups(default="")
            code.append(Instruction(int(address, 16), guard, name, tuple(places)))
            is_open = False
            if name.startswith("BRA") and (jump := re.search(r"`\((\.L_\w+)\)", rest)):
                jumps.append((code[-1], jump[1]))
        elif found := CONTROL.match(line):
            word = int(found[1], 16) >> 41
            one = code[-1]
            one.stall, one.sets, one.frees = word & 15, word >> 5 & 7, word >> 8 & 7
            one.waits = word >> 11 & 63
    for one, label in jumps:
        one.target = labels.get(label)
    return code


class Block(NamedTuple):
    """Instructions from `begin` to before `end`, which run together, and how often they do."""

    begin: int
    end: int
    times: float


Times = Callable[[Instruction], float | None]


def blocks(code: Sequence[Instruction], times: Times) -> list[Block]:
    """The parts of the code between jumps; the median of its instructions says how often a part runs.

    An instruction of which `times` knows nothing does not count; a part of such runs as the one before does.
    Where a jump decides between two parts, the shorter one does not run.
    """
    begins = {0} | {one.target for one in code if one.target is not None}
    begins |= {i + 1 for i, one in enumerate(code) if re.match("BRA|EXIT|RET|BSYNC", one.name)}
    places = sorted(begin for begin in begins if begin < len(code))
    found: list[Block] = []
    for begin, end in zip(places, [*places[1:], len(code)], strict=True):
        known = [n for one in code[begin:end] if (n := times(one)) is not None]
        before = found[-1].times if found else 1.0
        found.append(Block(begin, end, median(known) if known else before))
    for one, other in _alternatives(code, found):
        longer = [sum((b.end - b.begin) * b.times for b in found[part]) for part in (one, other)]
        shorter = other if longer[0] >= longer[1] else one
        found[shorter] = [block._replace(times=0) for block in found[shorter]]
    return found


def _alternatives(
    code: Sequence[Instruction], found: Sequence[Block]
) -> Iterator[tuple[slice, slice]]:
    """Parts of which one runs: before a jump over the other one, where another jump leads."""
    number = {block.begin: i for i, block in enumerate(found)}
    jumps = [(i, code[block.end - 1]) for i, block in enumerate(found)]
    to = {i: number[one.target] for i, one in jumps if one.target is not None}
    for i, one in jumps:
        is_over = i in to and to[i] > i + 1 and not one.guard
        choices = [j for j, target in to.items() if j < i and target == i + 1]
        if is_over and choices:
            yield slice(choices[0] + 1, i + 1), slice(i + 1, to[i])


def walk(code: Sequence[Instruction], times: Times) -> Iterator[int]:
    """Numbers of the instructions in the order in which a warp runs them, each loop by its turns."""
    found = blocks(code, times)
    number = {block.begin: i for i, block in enumerate(found)}
    ends: dict[int, int] = {}
    for i, block in enumerate(found):
        target = code[block.end - 1].target
        if target is not None and number[target] <= i and target != block.end - 1:
            ends[number[target]] = i

    def part(first: int, last: int, outer: float, own: int | None) -> Iterator[int]:
        i = first
        while i <= last:
            if i in ends and i != own and ends[i] <= last:
                end = ends[i]
                jump = times(code[found[end].end - 1])
                inner = found[end].times if jump is None else jump
                for _ in range(math.ceil(inner / outer - 1e-6)):
                    yield from part(i, end, inner, i)
                i = end + 1
                continue
            if found[i].times > 0:
                yield from range(found[i].begin, found[i].end)
            i += 1

    for i in part(0, len(found) - 1, 1.0, None):
        yield i
        if code[i].name == "EXIT" and not code[i].guard:
            return


@dataclass
class Time:
    """Cycles that one warp takes.

    Attributes:
        issued: instructions.
        of: cycles of each instruction by number, its wait and its stall.
    """

    cycles: int = 0
    issued: int = 0
    of: dict[int, int] = field(default_factory=dict)


def timeline(
    code: Sequence[Instruction], times: Times, line_cycles: int
) -> Iterator[tuple[int, int, int]]:
    """Yield each instruction's number in order, when it is next, and its cycles, those of waiting too."""
    cycles, ready, known = 0, [0] * SCOREBOARDS, set()
    for i in walk(code, times):
        one, begin = code[i], cycles
        if one.address // LINE_BYTES not in known:
            known.add(one.address // LINE_BYTES)
            cycles += line_cycles
        waited = [ready[j] for j in range(SCOREBOARDS) if one.waits >> j & 1]
        if one.name.startswith("DEPBAR"):
            waited += ready
        at = max(cycles, *waited) if waited else cycles
        if one.sets < SCOREBOARDS:
            ready[one.sets] = max(ready[one.sets], at + one.latency)
        if one.frees < SCOREBOARDS:
            ready[one.frees] = max(ready[one.frees], at + min(one.latency, OTHERS))
        at += BARRIER * one.name.startswith("BAR")
        cycles = at + max(1, one.stall)
        yield i, begin, cycles - begin


def time_of(code: Sequence[Instruction], times: Times, line_cycles: int) -> Time:
    """How long a warp takes that has a scheduler alone, and waits so long for a line of code."""
    time = Time()
    for i, begin, cycles in timeline(code, times, line_cycles):
        time.cycles = begin + cycles
        time.issued += 1
        time.of[i] = time.of.get(i, 0) + cycles
    return time
