"""Every public name and every command is on a page of docs/reference."""

import re
from importlib import import_module

from pybeam.cli import pybeam as commands
from support.paths import ROOT
from support.public_names import PUBLIC

TEXT = "\n".join(
    page.read_text("utf-8") for page in sorted((ROOT / "docs" / "reference").rglob("*.md"))
)
DOCUMENTED = re.findall(r"^\.\. auto(?:function|class|exception):: (pybeam[\w.]*)", TEXT, re.M)


def value_of(name: str) -> object:
    home, _, last = name.rpartition(".")
    return getattr(import_module(home), last)


def test_every_public_name_is_on_a_page():
    found = {id(value_of(one)) for one in DOCUMENTED}
    missing = [name for name, value in PUBLIC.items() if id(value) not in found]
    assert not missing, "write directives for these names"


def test_nothing_is_on_two_pages():
    assert len(set(map(id, map(value_of, DOCUMENTED)))) == len(DOCUMENTED)


def test_every_command_is_on_a_page():
    missing = [name for name in commands.commands if f"```{{command}} {name}\n" not in TEXT]
    assert not missing
