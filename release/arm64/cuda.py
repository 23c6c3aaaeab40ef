"""torch for ARM64 without CUDA.

PyPI's torch for ARM64 is built with CUDA, and does not start without its libraries. They take
gigabytes, and an emulated CPU minutes to load. A library that does nothing takes the place of each:
its functions return 0, so that torch finds no device.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

TOOLS = "aarch64-linux-gnu-"
# While torch is imported, it writes to what one function returns, and destroys what another one
# makes, whose destructor is virtual.
RETURNS_A_PLACE = "_ZN4c10d15get_gil_checkerEv"
MAKES_AN_OBJECT = "_ZN4c10d16ProcessGroupNCCL7OptionsC"

CODE = """
        .text
nothing:
        mov x0, xzr
        ret
        .data
        .balign 16
place:  .zero 16
        .quad 0, 0
        .rept 16
        .quad nothing
        .endr
"""
FUNCTION = """
        .text
        .globl {0}
        .type {0}, %function
{0}:    {1}
        ret
"""
# a type has its name in its second word, where Python's bindings ask for it
OBJECT = """
        .data
        .balign 16
        .globl {0}
        .type {0}, %object
        .size {0}, 4096
{0}:    .quad 0, name_{0}
        .zero 4080
name_{0}: .string "{0}"
"""


def replace(libraries: Path, system: Path) -> None:
    """Puts the library that does nothing where torch's own look for CUDA's."""
    of_cuda = [path for path in libraries.glob("*.so*") if "cuda" in path.name]
    kept = [path for path in libraries.glob("*.so*") if "cuda" not in path.name]
    kept = [path for path in kept if "nvshmem" not in path.name]
    there = [path for path in system.rglob("*") if re.search(r"\.so(\.|$)|^python3", path.name)]
    is_object = {name: kind in "BDV" for path in of_cuda for kind, name, _ in _defined(path)}
    known = {name for path in [*kept, *there] for _, name, _ in _defined(path)}
    missing = {
        name: version
        for path in kept
        for kind, name, version in _symbols(path, "--undefined-only")
        if kind == "U" and name not in known
    }
    needed = {name for path in kept for name in _needed(path)}
    needed -= {path.name for path in [*kept, *there]}
    for path in libraries.glob("*"):
        if path in of_cuda or "nvshmem" in path.name:
            path.unlink()
    made = libraries / "nothing.so"
    _make(made, missing, {name for name in missing if is_object.get(name)})
    for name in needed:
        (libraries / name).write_bytes(made.read_bytes())


def _symbols(path: Path, which: str):
    """The kind, name and version of each dynamic symbol; none where this is no library."""
    command = [TOOLS + "nm", "-D", "--with-symbol-versions", which, path]
    for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition("@")
        yield kind, name, version.strip("@")


def _defined(path: Path):
    return _symbols(path, "--defined-only") if path.is_file() else ()


def _needed(path: Path) -> list[str]:
    said = subprocess.run([TOOLS + "objdump", "-p", path], capture_output=True, text=True).stdout
    return re.findall(r"NEEDED +(\S+)", said)


def _make(path: Path, versions: dict[str, str], objects: set[str]) -> None:
    code, of_version = [CODE], defaultdict(list)
    for name, version in versions.items():
        code.append(OBJECT.format(name) if name in objects else FUNCTION.format(name, _body(name)))
        if version:
            of_version[version].append(f"{name};")
    source, script = path.with_suffix(".s"), path.with_suffix(".map")
    source.write_text("".join(code))
    script.write_text(
        "".join(f"{v} {{ global: {' '.join(names)} }};\n" for v, names in of_version.items())
    )
    command = [TOOLS + "gcc", "-shared", "-nostdlib", f"-Wl,--version-script={script}"]
    subprocess.run([*command, source, "-o", path], check=True)


def _body(name: str) -> str:
    if name == RETURNS_A_PLACE:
        return "adrp x0, place\n        add x0, x0, :lo12:place"
    if name.startswith(MAKES_AN_OBJECT):
        return "adrp x8, place + 32\n        add x8, x8, :lo12:place + 32\n        str x8, [x0]"
    return "mov x0, xzr"
