"""Tables of "Coming from …": a TOML file beside each page has its rows, and this writes them into the page.

    python docs/tables.py

A row has cells, and code that proves them: `runs`, a list of what works, and `fails`, which has for each name
that pybeam does not know the code whose error says that name. A piece of code is Python, or a command if it
begins with `pybeam `. `setup` comes before all of them. `tests/project/test_coming_from.py` runs it all.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

FILES = sorted((Path(__file__).parent / "coming-from").glob("*.toml"))


def tables_of(file: Path) -> dict[str, Any]:
    """Read what a file says: `setup`, and a `table` list of `columns` and `row`."""
    return tomllib.loads(file.read_text("utf-8"))


def lines_of(table: dict[str, Any]) -> list[str]:
    """Return a table's lines in Markdown."""
    columns = table["columns"]
    return [
        _line(columns),
        "|" + "---|" * len(columns),
        *(_line(row["cells"]) for row in table["row"]),
    ]


def _line(cells: list[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def filled(page: str, tables: list[dict[str, Any]]) -> str:
    """Return a page with these tables in place of those that have the same columns.

    Raises:
        ValueError: the page has not one table with these columns.
    """
    lines = page.split("\n")
    for table in tables:
        new = lines_of(table)
        if lines.count(new[0]) != 1:
            raise ValueError(f"the page must have one table that begins with {new[0]!r}")
        first = end = lines.index(new[0])
        while lines[end].startswith("|"):
            end += 1
        lines[first:end] = new
    return "\n".join(lines)


def main() -> None:
    for file in FILES:
        page = file.with_suffix(".md")
        page.write_text(filled(page.read_text("utf-8"), tables_of(file)["table"]), "utf-8")


if __name__ == "__main__":
    main()
