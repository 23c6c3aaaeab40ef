"""Every public name and every command is on a page of docs/reference."""

import re
from importlib import import_module

import pytest

from pybeam.cli import pybeam as commands
from support.paths import ROOT
from support.public_names import PUBLIC

TEXT = "\n".join(
    page.read_text("utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
)
DOCUMENTED = re.findall(r"^\.\. auto(?:function|class|exception):: (pybeam[\w.]*)", TEXT, re.M)


def value_of(name: str) -> object:
    home, _, last = name.rpartition(".")
    return getattr(import_module(home), last)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_on_a_page(name):
    found = [value_of(one) for one in DOCUMENTED]
    assert any(value is PUBLIC[name] for value in found), "write a directive for it"


def test_nothing_is_on_two_pages():
    assert len(set(map(id, map(value_of, DOCUMENTED)))) == len(DOCUMENTED)


@pytest.mark.parametrize("name", commands.commands)
def test_a_command_is_on_a_page(name):
    assert f"```{{command}} {name}\n" in TEXT
