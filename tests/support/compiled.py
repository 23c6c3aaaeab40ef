"""Libraries of C++ that tests compile: once for all runs and processes, until a source changes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from support.paths import ROOT

KEPT = ROOT / "build" / "tests"


def library(source: Path, flags: Sequence[str]) -> ctypes.CDLL:
    """The library of one source, which may include files of its folder and of `csrc`."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    command = [compiler, "-std=c++20", "-shared", "-fPIC", "-w", *flags]
    path = KEPT / f"{source.parent.name}-{_key(command, source)}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # another process may compile the same
        own = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, str(source), "-o", str(own)], check=True)
        own.replace(path)
    return ctypes.CDLL(str(path))


def _key(command: Sequence[str], source: Path) -> str:
    """A name that changes with the command, the compiler and every file that may be included."""
    files = [*sorted(source.parent.glob("*")), *sorted((ROOT / "csrc").rglob("*.*"))]
    compiler = Path(command[0]).resolve().stat()
    found = sha256(repr((command, compiler.st_size, compiler.st_mtime_ns)).encode())
    for path in files:
        if path.is_file():
            found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
