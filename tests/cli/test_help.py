"""Every help page, as it is seen, and the short ones."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pybeam.cli import pybeam
from pybeam.cli.options.sections import SectionCommand
from support.golden import assert_golden

PAGES = Path(__file__).parent / "help"


@pytest.mark.parametrize("name", ["pybeam", *sorted(pybeam.commands)])
def test_help(name):
    arguments = ["--help"] if name == "pybeam" else [name, "--help"]
    shown = CliRunner().invoke(pybeam, arguments, prog_name="pybeam", terminal_width=100)
    assert shown.exit_code == 0
    assert_golden(PAGES / f"{name}.txt", shown.output)


SHORT = sorted(
    name
    for name, command in pybeam.commands.items()
    if isinstance(command, SectionCommand) and command.has_short_page
)


@pytest.mark.parametrize("name", SHORT)
def test_short_help(name):
    shown = CliRunner().invoke(pybeam, [name, "-h"], prog_name="pybeam", terminal_width=100)
    assert shown.exit_code == 0
    assert_golden(PAGES / f"{name}-h.txt", shown.output)


@pytest.mark.parametrize("name", sorted(pybeam.commands))
@pytest.mark.parametrize("width", [80, 100])
def test_h_fits_a_screen(name, width):
    """The page of a command has examples, none of them cut, and its options."""
    runner = CliRunner()
    shown = runner.invoke(pybeam, [name, "-h"], prog_name="pybeam", terminal_width=width).output
    assert len(shown.splitlines()) <= 45 and "ptions:" in shown
    assert ("Common options:" in shown) == (name in SHORT)
    _, _, rest = re.split(r"(Examples?:)\n", shown, maxsplit=1)
    examples = rest.partition("\n\n")[0].splitlines()
    assert examples and not examples[-1].endswith("\\")


def test_there_is_a_page_for_each_command():
    short = {f"{name}-h" for name in SHORT}
    assert {path.stem for path in PAGES.iterdir()} == {"pybeam", *pybeam.commands, *short}
    assert {"translate", "transcribe", "serve", "bench-serve"} <= {*SHORT}
