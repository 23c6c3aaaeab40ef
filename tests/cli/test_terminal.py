"""A shell gets completion, and a terminal alone gets colour."""

import os
import pty
import shutil
import subprocess

import pytest
from click.testing import CliRunner

from pybeam.cli import main, pybeam

SHELLS = ("bash", "zsh", "fish")
WRONG = ["translate", "--no-such-option"]


def completed(monkeypatch, capfd, words: str, place: int) -> list[str]:
    """The words that bash is offered behind these."""
    monkeypatch.setenv("_PYBEAM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(place))
    with pytest.raises(SystemExit):
        main([])
    return capfd.readouterr().out.split()


def test_commands_and_options_are_completed(monkeypatch, capfd):
    commands = completed(monkeypatch, capfd, "pybeam trans", 1)
    assert commands == ["plain,transcribe", "plain,translate"]
    assert "plain,--n-best" in completed(monkeypatch, capfd, "pybeam translate --n-", 2)
    values = completed(monkeypatch, capfd, "pybeam transcribe --task transl", 3)
    assert values == ["plain,translate"]


def test_what_takes_files_is_completed_with_files():
    takers = [
        (name, one.type)
        for name, command in pybeam.commands.items()
        for one in command.params
        if (one.metavar or "").strip("[].").startswith(("FILE", "DIR"))
    ]
    assert len(takers) > 20
    assert not [name for name, kind in takers if not kind.shell_complete(None, None, "")]


def test_names_of_files_are_completed(monkeypatch, capfd):
    assert completed(monkeypatch, capfd, "pybeam compare s", 2) == ["file,s"]
    assert completed(monkeypatch, capfd, "pybeam serve --model-folder m", 3) == ["dir,m"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_for_each_shell(shell):
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("there is no bash")
    shown = CliRunner().invoke(pybeam, ["completion", shell], prog_name="pybeam")
    assert shown.exit_code == 0 and "_PYBEAM_COMPLETE" in shown.output
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=shown.output, text=True, check=True)


def test_no_colour_where_no_terminal_is(capfd):
    assert main(WRONG) == 2
    errors = capfd.readouterr().err
    assert "Error: No such option" in errors and "\x1b" not in errors


@pytest.mark.parametrize("has_colour", [True, False])
def test_the_word_error_is_red_on_a_terminal(has_colour, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not has_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    own, others = pty.openpty()
    with open(others, "w", closefd=False) as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        assert main(WRONG) == 2
        terminal.flush()
    written = os.read(own, 65536).decode()
    os.close(own)
    os.close(others)
    assert ("\x1b[31m\x1b[1mError:" in written) == has_colour
    assert "No such option" in written and ("\x1b" in written) == has_colour
