"""Counts the instructions of products for each multiply-add, by instruction set, in the extension.

    python -m benchmarks.tools.instructions

reads the extension of this machine and the one that `make test-arm64` compiles, with binutils, and writes
results/instructions.json and the table of docs/reference/kernels.md. A product has a loop for each height of
a block of rows. The number is that of the loop that needs fewest.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.journal import Journal, results_folder

ARM = "aarch64-linux-gnu-"
ROOT = Path(__file__).parents[2]
EXTENSIONS = {"": ROOT / "pybeam", ARM: ROOT / "build" / "arm64" / "pybeam" / "pybeam"}
PAGE = ROOT / "docs" / "reference" / "kernels.md"
HEAD = "| CPU | `PYBEAM_ISA` | float32 | bfloat16 | int8 |"
# of what each product is an instance
FUNCTIONS = {
    "float32": r"multiply\w*<[^(]*\bfloat, float>",
    "bfloat16": r"multiply\w*<[^(]*\bPair, pybeam::Pair>",
    "int8": r"multiply\w*<[^(]*\bBytes\b",
}
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^ *([0-9a-f]+):\t(.*)$")
SYMBOL = re.compile(r"^ *\d+: ([0-9a-f]+) +\S+ (FILE|FUNC) .* (\S+)$")
JUMP = re.compile(r"^(?:j[a-z]+|b|b\.[a-z]+|cbn?z|tbn?z)\s.*?\b([0-9a-f]+)(?: <|$)")


class InstructionSet(NamedTuple):
    """An instruction set, and for each product the instruction that multiplies, with its multiply-adds."""

    cpu: str
    name: str
    multiplies: dict[str, tuple[str, int]]
    tools: str = ""  # what the names of this machine's binutils begin with


AVX2, AVX512 = (r"vfmadd\d+ps .*%ymm", 8), (r"vfmadd\d+ps .*%zmm", 16)
NEON = (r"fmla\tv.*\.4s", 4)
SETS = (
    InstructionSet("x86-64, AVX2", "avx2", {"float32": AVX2, "int8": ("vpmaddwd", 16)}),
    InstructionSet("and AVX-VNNI", "avx_vnni", {"float32": AVX2, "int8": ("vpdpbusd", 32)}),
    InstructionSet("AVX-512", "avx512", {"float32": AVX512, "int8": ("vpmaddubsw", 64)}),
    InstructionSet(
        "and VNNI, BF16",
        "avx512_bf16",
        {"float32": AVX512, "bfloat16": ("vdpbf16ps", 32), "int8": ("vpdpbusd", 64)},
    ),
    InstructionSet("ARM64, NEON", "neon", {"float32": NEON, "int8": ("smull", 8)}, ARM),
    InstructionSet("and DotProd", "neon_dotprod", {"float32": NEON, "int8": ("sdot", 16)}, ARM),
    InstructionSet(
        "and I8MM, BF16",
        "neon_bf16",
        {"float32": NEON, "bfloat16": ("bfdot", 8), "int8": ("usdot", 16)},
        ARM,
    ),
)


def innermost_loops(code: list[tuple[int, str]]) -> Iterator[list[str]]:
    """The instructions of the loops of a function that have no other loop in them."""
    backwards = []
    for address, text in code:
        jump = JUMP.match(text)
        if jump and code[0][0] <= int(jump[1], 16) <= address:
            backwards.append((int(jump[1], 16), address))
    for first, last in backwards:
        inner = [(a, b) for a, b in backwards if first <= a and b <= last]
        if len(inner) == 1:
            yield [text for address, text in code if first <= address <= last]


class Function(NamedTuple):
    """A function's name and instructions, each with its address."""

    name: str
    code: list[tuple[int, str]]


def functions_of(listing: str) -> Iterator[Function]:
    """The functions of what objdump prints."""
    function = Function("", [])
    for line in listing.splitlines():
        if found := FUNCTION.match(line):
            if function.code:
                yield function
            function = Function(found[1], [])
        elif found := INSTRUCTION.match(line):
            function.code.append((int(found[1], 16), found[2]))
    if function.code:
        yield function


def counted(functions: Iterable[Function], kind: InstructionSet) -> dict[str, float]:
    """For each product, the fewest instructions of a loop for a multiply-add."""
    found: dict[str, float] = {}
    for name, code in functions:
        for product, (instruction, size) in kind.multiplies.items():
            if not re.search(FUNCTIONS[product], name):
                continue
            for loop in innermost_loops(code):
                number = size * sum(bool(re.search(instruction, text)) for text in loop)
                if number:
                    found[product] = min(found.get(product, len(loop)), len(loop) / number)
    assert set(found) == set(kind.multiplies), f"{kind.name} has loops of {sorted(found)} alone"
    return {product: round(number, 3) for product, number in found.items()}


def by_file(tools: str) -> dict[str, list[Function]]:
    """The functions of an extension, by the source file, which their symbols stand behind."""
    [extension] = EXTENSIONS[tools].glob("_C.abi3.so")
    file, files = "", {}
    for line in said(f"{tools}readelf", "-sW", extension).splitlines():
        if found := SYMBOL.match(line):
            if found[2] == "FILE":
                file = found[3]
            else:
                files[int(found[1], 16)] = file
    functions: dict[str, list[Function]] = {}
    listing = said(f"{tools}objdump", "-dC", "--no-show-raw-insn", extension)
    for function in functions_of(listing):
        functions.setdefault(files.get(function.code[0][0], ""), []).append(function)
    return functions


def said(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of the page's table."""
    lines = [HEAD, "|---|---|---|---|---|"]
    for row in rows:
        numbers = [
            f"{row[product]:.3f}" if row.get(product) else "as float32" for product in FUNCTIONS
        ]
        lines.append(f"| {row['cpu']} | `{row['isa']}` | {' | '.join(numbers)} |")
    return lines


def filled(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with these numbers in its table."""
    before, found, rest = page.partition(HEAD)
    assert found, f"the page has no table that begins with {HEAD!r}"
    return before + "\n".join(table(rows)) + "\n\n" + rest.partition("\n\n")[2]


def main() -> None:
    journal = Journal(results_folder("cpu"), "instructions", ("isa",))
    functions = {tools: by_file(tools) for tools in EXTENSIONS}
    for kind in SETS:
        own = functions[kind.tools][f"{kind.name}.cpp"]
        journal.add({"cpu": kind.cpu, "isa": kind.name, **counted(own, kind)})
    journal.finish(journal.own_rows)
    PAGE.write_text(filled(PAGE.read_text("utf-8"), journal.own_rows), "utf-8")


if __name__ == "__main__":
    main()
