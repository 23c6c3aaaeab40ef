"""The CUDA C++ kernel of `decoder_layers` as threads of the CPU, all blocks at once, under ThreadSanitizer.

`test_decoder_layers.py` checks its results, where one thread runs at a time.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.paths import ROOT

pytestmark = pytest.mark.slow

SOURCE = ROOT / "tests" / "ops" / "cuda_resident" / "main.cpp"


def run(folder: Path, *defines: str) -> subprocess.CompletedProcess:
    """Compile the kernel with these macros, and run it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    program = folder / "main"
    flags = ["-std=c++20", "-O1", "-w", "-pthread", "-fsanitize=thread", "-DTHREADS"]
    macros = [f"-D{define}" for define in defines]
    command = [compiler, *flags, *macros, f"-I{SOURCE.parent}", str(SOURCE), "-o", str(program)]
    compiled = subprocess.run(command, capture_output=True, text=True)
    if "tsan" in compiled.stderr:
        pytest.skip("there is no ThreadSanitizer")
    assert compiled.returncode == 0, compiled.stderr
    # at some random addresses of a program ThreadSanitizer finds no room for what it keeps
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    return subprocess.run(
        [*fixed, str(program)],
        env={"TSAN_OPTIONS": "halt_on_error=1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_no_race(tmp_path):
    found = run(tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr[-4000:]
    assert found.stdout.count("the same") == 3


@pytest.mark.parametrize(
    "mistake",
    [
        *("LOST_BARRIER=3", "LOST_BARRIER=7", "LOST_WAIT", "EARLY_PLACES", "FULL_PLACES"),
        "WEAK_MEETING",
    ],
)
def test_mistakes_show(tmp_path, mistake):
    found = run(tmp_path, mistake)
    assert found.returncode != 0
    assert "data race" in found.stderr or "DIFFERENT" in found.stdout
