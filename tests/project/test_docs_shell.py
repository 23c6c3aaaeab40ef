"""The commands `pybeam …` in the README run as they stand there."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from support.paths import MODEL, ROOT

BLOCKS = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.S | re.M)
LINES = [line for block in BLOCKS for line in block.splitlines()]
COMMANDS = [line for line in LINES if re.search(r"(^|\| )pybeam ", line)]
# models that are not in the repository
ABSENT = "whisper-tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of what the commands read, with `pybeam` on the path."""
    path = tmp_path_factory.mktemp("checkout")
    (path / "examples").symlink_to(ROOT / "examples")
    (path / "DIR").symlink_to(MODEL)
    (path / "in.es").write_text("Yo soy la luz del mundo.\nY vió Dios que era bueno.\n")
    (path / "out.en").write_text("I am the light of the world.\nAnd God saw that it was good.\n")
    shim = path / "bin" / "pybeam"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m pybeam "$@"\n')
    shim.chmod(0o755)
    return path


def test_there_are_commands():
    assert len(COMMANDS) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme(command, folder):
    if ABSENT in command:
        pytest.skip(f"{ABSENT} is not in the repository")
    if shutil.which("sh") is None:
        pytest.skip("there is no shell")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        ["sh", "-c", command.partition("  #")[0]],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout or "--output" in command
