"""Compile Triton kernels for absent GPUs, and read the machine code.

    for launch in recorded(lambda: select(...)):      # what the launcher would start, not started
        assembly = assemble(launch, 90)
        assert assembly.stack == assembly.local == 0

A launch is compiled by the code that compiles it on a GPU, with the same specialisation on
alignment, so the tests check the code that will run. Triton's cache on disk makes a second run fast.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

CAPABILITIES = (80, 90)
# as values of a test's parameter: what spills on one mostly spills on the other
CAPABILITIES_TO_TEST = (pytest.param(80, marks=pytest.mark.slow), 90)
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", re.M)
# the predicate that guards an instruction, its name, its operands
PARTS = re.compile(r"(?:@!?(U?P\w+)\s+)?(\S+)\s*(.*)")
REGISTER = re.compile(r"\b(U?R|U?P)(\d+)\b(\.64)?")
LOAD, WRITES_NO_REGISTER = (
    re.compile("LDG\\b|LD\\b|ATOM"),
    re.compile("ST|RED|BAR|BRA|BS|EXIT|LDGSTS"),
)


@dataclass(frozen=True)
class Launch:
    """One call of a kernel."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple
    options: dict[str, Any]

    @property
    def bound(self) -> tuple[list[tuple], dict[str, Any]]:
        """The type of each argument with what is known of it, as Triton compiles for it, and the options."""
        with _target(CAPABILITIES[0]):
            binder = self.kernel.device_caches[CAPABILITIES[0]][-1]
            return binder(*self.arguments, **self.options)[1:]

    @property
    def key(self) -> tuple:
        """Equal for launches that run the same machine code."""
        known, options = self.bound
        return self.kernel.__name__, str(known), str(sorted(options.items()))


@dataclass(frozen=True)
class Loop:
    """Instructions between the target of a jump back and the jump."""

    instructions: tuple[str, ...]

    def count(self, pattern: str) -> int:
        return sum(re.search(pattern, text) is not None for text in self.instructions)


@dataclass(frozen=True)
class Assembly:
    """Machine code of one kernel for one GPU, and the memory and registers it needs."""

    registers: int
    stack: int
    local: int
    shared: int
    sass: str

    @cached_property
    def code(self) -> list[tuple[int, str]]:
        """Address and text of every instruction."""
        return [(int(address, 16), text) for address, text in INSTRUCTION.findall(self.sass)]

    def count(self, pattern: str) -> int:
        return sum(re.search(pattern, text) is not None for _, text in self.code)

    @cached_property
    def loops(self) -> list[Loop]:
        """Every loop, in order of its first instruction; a loop contains its inner loops."""
        loops = []
        for address, text in self.code:
            jump = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
            # a kernel ends in a jump to itself
            if jump and int(jump[1], 16) < address:
                begin = int(jump[1], 16)
                body = tuple(text for at, text in self.code if begin <= at <= address)
                loops.append((begin, Loop(body)))
        return [loop for _, loop in sorted(loops, key=lambda pair: pair[0])]

    @cached_property
    def chained_loads(self) -> int:
        """How many loads from memory wait for one another, at least, where every instruction runs once.

        Numbers that have been in shared memory count as ready.
        """
        depth: dict[str, int] = {}
        longest = 0
        for _, text in self.code:
            name, read, written = _registers(text)
            own = max((depth.get(one, 0) for one in read), default=0) + bool(LOAD.match(name))
            depth |= dict.fromkeys(written, own)
            longest = max(longest, own)
        return longest


def _registers(text: str) -> tuple[str, set[str], set[str]]:
    """The name of an instruction, and the registers that it reads and writes."""
    guard, name, rest = PARTS.match(text).groups(default="")
    operands = rest.split(",")
    num_written = 0 if WRITES_NO_REGISTER.match(name) else 1 + ("SETP" in name)
    wide = 4 if ".128" in name else 2 if re.search(r"\.64|WIDE", name) else 1
    read, written = set(REGISTER.findall(guard)), set()
    read = {kind + number for kind, number, _ in read}
    for i, operand in enumerate(operands):
        for kind, number, is_pair in REGISTER.findall(operand):
            count = wide if i < num_written and "P" not in kind else 1 + bool(is_pair)
            own = {f"{kind}{int(number) + j}" for j in range(count)}
            (written if i < num_written else read).update(own)
    return name, read, written


@contextmanager
def recording(note: Callable[[Launch], object]) -> Iterator[None]:
    """Call `note` with every launch of a Triton kernel, in place of making it."""
    from triton.runtime.jit import JITFunction

    def record(self, *arguments, grid, warmup, **options):
        note(Launch(self, grid, arguments, options))

    run = JITFunction.run
    JITFunction.run = record
    try:
        yield
    finally:
        JITFunction.run = run


def recorded(call: Callable[[], object]) -> list[Launch]:
    """Record the launches of Triton kernels that `call` would make, without making them."""
    launches: list[Launch] = []
    with recording(launches.append):
        call()
    return launches


def distinct(launches: list[Launch]) -> list[Launch]:
    """Keep one launch for each machine code that the launches run."""
    return list({launch.key: launch for launch in launches}.values())


def compile_for(launch: Launch, capability: int) -> Any:
    """What Triton compiles this launch to."""
    with _target(capability):
        return launch.kernel.run(*launch.arguments, grid=launch.grid, warmup=True, **launch.options)


def ptx(launch: Launch, capability: int) -> str:
    """The text of a launch before registers are chosen."""
    return compile_for(launch, capability).asm["ptx"]


def assemble(launch: Launch, capability: int) -> Assembly:
    """Compile a launch for compute capability `capability` / 10."""
    compiled = compile_for(launch, capability)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compiled.asm["cubin"])
        usage = _cuobjdump("-res-usage", path)
        sass = _cuobjdump("-sass", path)
    numbers = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    assert numbers, usage
    registers, stack, _, local = (int(number) for number in numbers.groups())
    return Assembly(registers, stack, local, compiled.metadata.shared, sass)


def _cuobjdump(option: str, path: Path) -> str:
    import triton

    tool = triton.knobs.nvidia.cuobjdump.path
    return subprocess.run(
        [tool, option, str(path)], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


class _AbsentDevice:
    """A driver that answers the compiler's questions; the number of the device is its capability."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


@contextmanager
def _target(capability: int) -> Iterator[None]:
    from triton.runtime import driver

    before = driver._active
    driver.set_active(_AbsentDevice(capability))
    try:
        yield
    finally:
        driver._active = before
