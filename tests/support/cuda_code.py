"""Compile the CUDA sources with nvcc alone, for absent GPUs, and read the machine code."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .paths import ROOT

SOURCES = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
ARCHITECTURES = ("80", "90a")
# lane-instructions per logit that an H200 can spend while it reads at its full copy rate
BUDGET = {"bfloat16": 15.6, "float16": 15.6, "float32": 31.0}

KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '\w+'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers"
    r"(?:, used \d+ barriers)?(?:, (?P<shared>\d+) bytes smem)?",
    re.S,
)
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", re.M)


def own_operators() -> set[str]:
    """The operators that an extension has only if it was built with CUDA."""
    texts = [path.read_text("utf-8") for path in (ROOT / "csrc" / "cuda").glob("*.cpp")]
    return {name for text in texts for name in re.findall(r'm\.def\(\s*"(\w+)\(', text)}


@dataclass(frozen=True)
class Kernel:
    """Bytes and registers that one kernel needs, as ptxas reports them."""

    name: str
    registers: int
    stack: int
    spills: int
    shared: int  # those that a launch names are beside these


def compile_for(source: Path, architecture: str, cubin: Path) -> list[Kernel]:
    """The kernels of `source`. Raises CalledProcessError if nvcc does not compile it."""
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    command = ["nvcc", "-std=c++20", "-O3", "-cubin", target, "-Xptxas", "-v", "-o", str(cubin)]
    text = subprocess.run(
        [*command, str(source)], check=True, capture_output=True, text=True
    ).stderr
    return [
        Kernel(
            match["name"],
            int(match["registers"]),
            int(match["stack"]),
            int(match["stores"]) + int(match["loads"]),
            int(match["shared"] or 0),
        )
        for match in KERNEL.finditer(text)
    ]


def compile_whole(source: Path, target: Path) -> None:
    """An object for the host and all architectures, as an extension has it."""
    codes = [f"-gencode=arch=compute_{one},code=sm_{one}" for one in ARCHITECTURES]
    command = ["nvcc", "-std=c++20", "-c", *codes, "-o", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def disassembler() -> str | None:
    """cuobjdump of the CUDA toolkit, or the one that comes with Triton."""
    nvcc = shutil.which("nvcc")
    places = [Path(nvcc).resolve().parent] if nvcc else []
    triton = find_spec("triton")
    if triton is not None and triton.origin is not None:
        places.append(Path(triton.origin).parent / "backends" / "nvidia" / "bin")
    found = shutil.which("cuobjdump") or next(
        (str(place / "cuobjdump") for place in places if (place / "cuobjdump").exists()), None
    )
    return found


def machine_code(cubin: Path) -> dict[str, list[tuple[int, str]]]:
    """Address and text of every instruction, by the name of the function."""
    command = [disassembler(), "-sass", str(cubin)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names, bodies = re.findall(r"Function : (\w+)", text), re.split(r"Function : \w+", text)[1:]
    return {
        name: [(int(address, 16), line) for address, line in INSTRUCTION.findall(body)]
        for name, body in zip(names, bodies, strict=True)
    }


def blocks(code: list[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """The instructions between jumps and the targets of jumps."""
    targets = {jump_target(text) for _, text in code}
    parts: list[list[tuple[int, str]]] = [[]]
    for address, text in code:
        if address in targets:
            parts.append([])
        parts[-1].append((address, text))
        if re.search(r"\b(BRA|EXIT|RET)\b", text):
            parts.append([])
    return [part for part in parts if part]


def jump_target(text: str) -> int | None:
    match = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
    return int(match[1], 16) if match else None


def contains(block: list[tuple[int, str]], pattern: str) -> bool:
    return any(re.search(pattern, text) for _, text in block)


def select_variant(name: str) -> tuple[str, int]:
    """Logits and vectors per thread, from the mangled name of a `select_kernel`."""
    match = re.search(r"select_kernelI.*?\d(BFloat16|Float16|Float32)ELi(\d+)E", name)
    assert match is not None, name
    return match[1].lower(), int(match[2])


def instructions_per_logit(name: str, code: list[tuple[int, str]]) -> float:
    """Count the lane-instructions per logit of what every slice of a row runs through.

    They are the blocks that load, take maxima and exponentials, up to the block that counts the arrival.
    """
    logits, vectors = select_variant(name)
    num_logits = vectors * (4 if logits == "float32" else 8)
    parts = blocks(code)
    arrival = next(i for i, part in enumerate(parts) if contains(part, r"ATOMG?\b.*INC"))
    read = [
        part for part in parts[: arrival + 1] if contains(part, r"LDG\.E\S*\.128|MUFU\.EX2|INC")
    ]
    return round(sum(map(len, read)) / num_logits, 2)
