"""Numbers agree with their nouns."""

import re

import pytest

from pybeam.text.counts import counted
from support.paths import ROOT


@pytest.mark.parametrize(
    "num, said", [(0, "0 lines"), (1, "1 line"), (2, "2 lines"), (12_345, "12,345 lines")]
)
def test_counted(num, said):
    assert counted(num, "line") == said


def test_summaries_ask_it():
    """No text of the command line writes a number and several of a noun itself."""
    pattern = re.compile(r":,\} (?:\{[^}]*\}s|[a-z]+s)\b")
    files = [p for folder in ("cli", "traffic") for p in (ROOT / "pybeam" / folder).rglob("*.py")]
    assert files
    assert not [
        f"{path.name}: {found.group()}"
        for path in files
        for found in pattern.finditer(path.read_text("utf-8"))
    ]
