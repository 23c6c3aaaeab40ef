"""Programs of one launch that leave numbers for one another, as threads, under ThreadSanitizer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.paths import ROOT

pytestmark = pytest.mark.slow

SOURCE = ROOT / "tests" / "ops" / "program_exchange" / "main.cpp"


def run(folder: Path, *defines: str) -> subprocess.CompletedProcess:
    """Compile the model with these macros, and run it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    program = folder / "main"
    flags = ["-std=c++20", "-O1", "-pthread", "-fsanitize=thread"]
    command = [compiler, *flags, *(f"-D{define}" for define in defines)]
    compiled = subprocess.run(
        [*command, str(SOURCE), "-o", str(program)], capture_output=True, text=True
    )
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
    )


def test_no_race(tmp_path):
    found = run(tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr[-4000:]
    assert found.stdout == "0 wrong\n"


@pytest.mark.parametrize("mistake", ["LEFT_FULL", "ONE_SET"])
def test_mistakes_show(tmp_path, mistake):
    found = run(tmp_path, mistake)
    assert found.returncode != 0 and not found.stdout.startswith("0 wrong")
