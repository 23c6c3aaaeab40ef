"""The menu of the site: every page is in it once, and few entries are open at a time."""

from __future__ import annotations

import os
import re
from pathlib import Path

from support.pages import PAGES
from support.paths import ROOT

DOCS = ROOT / "docs"
MOST = 9
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.M | re.S)


def entries_of(page: Path) -> list[Path]:
    """The pages below this one in the menu, without their endings."""
    found = []
    for block in TOCTREE.findall(page.read_text("utf-8")):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                name = line.partition("<")[2].rstrip(">") or line
                found.append(Path(os.path.normpath(page.parent / name)))
    return found


def test_what_people_do_comes_first():
    names = [path.name for path in entries_of(DOCS / "index.md")]
    assert names == ["use", "serve", "study", "extend", "reference"]


def test_few_entries_are_open_below_one():
    assert {page: len(entries_of(page)) for page in PAGES if len(entries_of(page)) > MOST} == {}


def test_every_page_is_in_the_menu_once():
    pages = [page for page in PAGES if page.is_relative_to(DOCS) and page != DOCS / "index.md"]
    names = [page.with_suffix("") for page in pages]
    names += [page.with_suffix("") for page in (DOCS / "notebooks").glob("*.ipynb")]
    assert sorted(names) == sorted(entry for page in PAGES for entry in entries_of(page))
