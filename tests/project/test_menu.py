"""The menu of the site: every page is in it once, and few entries are open at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from support.pages import PAGES
from support.paths import ROOT

DOCS = ROOT / "docs"
CSS = DOCS / "_static" / "pybeam.css"
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


def open_at(page: Path, above: int = 0) -> Iterator[tuple[str, int]]:
    """Each entry below a page, and how many are shown when it is opened: those above and right below it.

    `pybeam.css` hides what stands beside an entry that is open.
    """
    below = entries_of(page) if page.exists() else []
    yield page.relative_to(DOCS).with_suffix("").as_posix(), above + len(below)
    for entry in below:
        yield from open_at(entry.with_suffix(".md"), above + 1)


def test_few_entries_are_open_at_once():
    shown = dict(open_at(DOCS / "index.md"))
    assert {name: num for name, num in shown.items() if num > MOST} == {}
    assert shown["start/translate"] == 3 and len(shown) > 60
    assert ":has(> li > input:checked) > li:not(:has(> input:checked))" in CSS.read_text("utf-8")


def test_every_page_is_in_the_menu_once():
    pages = [page for page in PAGES if page.is_relative_to(DOCS) and page != DOCS / "index.md"]
    names = [page.with_suffix("") for page in pages]
    names += [page.with_suffix("") for page in (DOCS / "notebooks").glob("*.ipynb")]
    assert sorted(names) == sorted(entry for page in PAGES for entry in entries_of(page))
