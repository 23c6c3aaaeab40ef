"""The commands `pybeam …` in the README and in docs/int8.md run as they stand there."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from support.paths import MODEL, ROOT


def commands_of(name: str) -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / name).read_text("utf-8"), re.S | re.M)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.search(r"(^|\| )pybeam ", line)]


COMMANDS = commands_of("README.md")
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


def run(command: str, folder) -> None:
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme(command, folder):
    if ABSENT in command:
        pytest.skip(f"{ABSENT} is not in the repository")
    run(command, folder)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell")
def test_the_commands_of_int8(folder):
    """The second one reads what the first one writes."""
    commands = commands_of("docs/int8.md")
    assert len(commands) == 2
    for command in commands:
        run(command, folder)
