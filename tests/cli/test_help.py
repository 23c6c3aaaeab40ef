"""Every help page, as it is seen."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pybeam.cli import pybeam
from support.golden import assert_golden

PAGES = Path(__file__).parent / "help"


@pytest.mark.parametrize("name", ["pybeam", *sorted(pybeam.commands)])
def test_help(name):
    arguments = ["--help"] if name == "pybeam" else [name, "--help"]
    shown = CliRunner().invoke(pybeam, arguments, prog_name="pybeam", terminal_width=100)
    assert shown.exit_code == 0
    assert_golden(PAGES / f"{name}.txt", shown.output)


def test_there_is_a_page_for_each_command():
    assert {path.stem for path in PAGES.iterdir()} == {"pybeam", *pybeam.commands}
