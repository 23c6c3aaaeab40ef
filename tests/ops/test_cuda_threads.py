"""The CUDA C++ kernel of `select` as threads of the CPU, several blocks at a time, under ThreadSanitizer.

`test_cuda_on_cpu.py` checks its results. There one thread runs at a time, so neither a lost barrier nor a
weak order between blocks can show.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.paths import ROOT

pytestmark = pytest.mark.slow

SOURCES = ROOT / "tests" / "ops" / "cuda_threads"
NUM_COPIES = 2


def run(folder: Path, *defines: str) -> subprocess.CompletedProcess:
    """Compile the kernel with these macros, and run it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    # copies of a library would share what is unique
    flags = ["-std=c++20", "-O1", "-w", "-fsanitize=thread", "-fno-gnu-unique", f"-I{SOURCES}"]
    command = [compiler, *flags, *(f"-D{define}" for define in defines)]
    libraries = [folder / f"select{i}.so" for i in range(NUM_COPIES)]
    first = [str(SOURCES / "select.cpp"), "-shared", "-fPIC", "-o", str(libraries[0])]
    compiled = subprocess.run([*command, *first], capture_output=True, text=True)
    if "tsan" in compiled.stderr:
        pytest.skip("there is no ThreadSanitizer")
    assert compiled.returncode == 0, compiled.stderr
    for library in libraries[1:]:
        shutil.copy(libraries[0], library)
    program = folder / "main"
    subprocess.run([*command, str(SOURCES / "main.cpp"), "-o", str(program)], check=True)
    # at some random addresses of a program ThreadSanitizer finds no room for what it keeps
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    return subprocess.run(
        [*fixed, str(program), *map(str, libraries)],
        env={"TSAN_OPTIONS": "halt_on_error=1"} if defines else {},
        capture_output=True,
        text=True,
    )


def test_no_race(tmp_path):
    found = run(tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr[-4000:]
    assert found.stdout.count("the same") == 2


@pytest.mark.parametrize("mistake", ["RELAXED_COUNTER", "LOST_BARRIER=3"])
def test_mistakes_show(tmp_path, mistake):
    found = run(tmp_path, mistake)
    assert "ThreadSanitizer: data race" in found.stderr, found.stdout
