"""The record: each table, figure and finding of the works that pybeam began with, beside what was found here.

    python docs/record.py

`docs/why/record.toml` has an entry for each, and this writes `docs/why/record.md`. A number that was measured
is a reference into a file of `benchmarks/results`::

    [[FILE; CASE; SYSTEM; COLUMN; FORMAT]]
    [[FILE; CASE; SYSTEM; NAME=VALUE; COLUMN; FORMAT]]    of the row with this value
    [[FILE; CASE; SYSTEM / OTHER; COLUMN; FORMAT]]        divided by another system's

Seconds of three turns and more are written with ±, the standard deviation of the turns, and so are
quotients of them. A `check` is a comparison of such numbers that holds as long as the verdict does. `is_lost`
says that the commit of a run is in no history.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RECORD, PAGE = DOCS / "why" / "record.toml", DOCS / "why" / "record.md"
RESULTS = DOCS.parent / "benchmarks" / "results"
REFERENCE = re.compile(r"\[\[([^\]]+)\]\]")
VERDICTS = {
    "repeats": "the same holds here",
    "in part": "some of it holds here",
    "turns around": "the opposite holds here",
    "does not repeat": "it does not hold here",
    "proven": "a test holds it in every case that it tries",
    "drawn": "pybeam draws it",
    "missing": "not measured here yet",
    "out of reach": "data, models or machines are not there, or not free",
}
# a verdict of what was not measured needs a reason, and no reference
UNMEASURED = ("missing", "out of reach")
COLUMNS = ("", "the work", "here", "", "spread", "command")


@cache
def content(name: str) -> dict[str, Any]:
    """Read a file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def number(reference: str) -> tuple[float, str]:
    """Return the number of a reference, and how it is to be written.

    Raises:
        ValueError: it does not lead to one number.
    """
    rows, column, form = rows_of(reference)
    values = [float(row[column]) for row in rows]
    return (values[0] / values[1] if len(values) > 1 else values[0]), form


def rows_of(reference: str) -> tuple[list[dict[str, Any]], str, str]:
    """Return the row of each system of a reference, its column, and how its number is to be written.

    Raises:
        ValueError: there is no such row, or more than one.
    """
    file, case, system, *conditions, column, form = (part.strip() for part in reference.split(";"))
    wanted = {}
    for condition in conditions:
        name, _, value = condition.partition("=")
        wanted[name.strip()] = float(value)
    found = []
    for one in system.split(" / "):
        named = {"case": case, "system": one} | wanted
        rows = [row for row in content(file)["rows"] if named.items() <= row.items()]
        rows = [row for row in rows if isinstance(row.get(column), int | float)]
        if len(rows) != 1:
            raise ValueError(
                f"[[{reference}]] must lead to one number, but there are {len(rows)} rows"
            )
        found += rows
    return found, column, form


def deviation(reference: str) -> float | None:
    """Return the standard deviation of seconds, or of a quotient of them; None: a file has none."""
    rows, column, _ = rows_of(reference)
    name = column.replace("seconds", "sd")
    if name == column or any(name not in row for row in rows):
        return None
    return number(reference)[0] * math.hypot(*(row[name] / row[column] for row in rows))


def runs_of(item: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the runs that an entry quotes, by file and number."""
    found = {}
    for reference in REFERENCE.findall(item["here"]):
        file = reference.partition(";")[0].strip()
        for row in rows_of(reference)[0]:
            found[f"{file}, run {row['run']}"] = content(file)["runs"][row["run"]]
    return found


@cache
def history() -> frozenset[str] | None:
    """Return the commits of this checkout; None where git does not know all of them."""
    git = ["git", "-C", str(DOCS)]
    try:
        shallow = subprocess.run(
            [*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True
        )
        asked = subprocess.run([*git, "rev-list", "HEAD"], capture_output=True, text=True)
    except OSError:
        return None
    if shallow.stdout.strip() != "false" or asked.returncode != 0:
        return None
    return frozenset(asked.stdout.split())


def is_known(commit: str) -> bool:
    """Whether a commit is in the history of this checkout, or nobody can say."""
    commits = history()
    return commits is None or any(one.startswith(commit) for one in commits)


def told(text: str) -> str:
    """Return a text with its numbers in place of their references."""

    def written(match: re.Match[str]) -> str:
        value, form = number(match[1])
        sd = deviation(match[1])
        return f"{value:{form}}" + (f" ± {sd:{form}}" if sd else "")

    return REFERENCE.sub(written, text)


def holds(check: str) -> bool:
    """Whether a comparison of numbers holds."""
    code = REFERENCE.sub(lambda match: repr(number(match[1])[0]), check)
    return bool(eval(code, {"__builtins__": {"abs": abs}}))


def works() -> list[dict[str, Any]]:
    """Return the works, each with its `item` list."""
    return tomllib.loads(RECORD.read_text("utf-8"))["work"]


def problems_of(item: dict[str, Any]) -> list[str]:
    """Say what is wrong with an entry."""
    found = []
    if item["verdict"] not in VERDICTS:
        found.append(f"{item['verdict']!r} is no verdict")
    is_measured = bool(REFERENCE.search(item["here"]))
    if is_measured and item["verdict"] in UNMEASURED:
        found.append("it is measured, and called missing")
    found += [
        f"{name} is of commit {run['commit']}, which is not in the history"
        for name, run in runs_of(item).items()
        if not (run["is_dirty"] or item.get("is_lost") or is_known(run["commit"]))
    ]
    found += [f"{check} does not hold" for check in item.get("check", ()) if not holds(check)]
    return [f"{item['what']}: {one}" for one in found]


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for work in works():
        parts += [f"\n## {work['title']}\n", f"{work['about']}\n"]
        parts += [_line(COLUMNS), "|" + "---|" * len(COLUMNS)]
        for item in work["item"]:
            verdict = item["verdict"]
            shown = f"**{verdict}**" if verdict in UNMEASURED else verdict
            command = item.get("command", "")
            if any(run["is_dirty"] for run in runs_of(item).values()):
                command += " (with changes)"
            if item.get("is_lost"):
                command += " (of a commit that is lost)"
            own = told(item["here"]), shown, told(item.get("spread", "")), command
            parts.append(_line((item["what"], item["theirs"], *own)))
        parts += [f"\n{told(text)}" for text in work.get("remarks", ())]
    parts.append(_count())
    return "\n".join(parts).rstrip("\n") + "\n"


def _count() -> str:
    verdicts = [item["verdict"] for work in works() for item in work["item"]]
    lines = ["\n## In numbers\n", "| verdict | meaning | entries |", "|---|---|--:|"]
    lines += [f"| {name} | {said} | {verdicts.count(name)} |" for name, said in VERDICTS.items()]
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


HEAD = """\
# The record

This page has the tables, figures and findings of three papers and a note, one a row, beside what was found
here. `python docs/record.py` makes the page of `docs/why/record.toml` and of the files in
`benchmarks/results`, and a test holds the page to them. A number is of one run of the command in its row.
Spread is the slowest turn less the fastest one, as a share of the median; where there is none, the number is
exact, or of one turn. Seconds of three turns and more have ± their standard deviation, in runs that
kept the deviation. "With changes" means that files had changes that are not in the commit which the run
names. The machine is a shared one with two cores, so small differences of time tell nothing.
[Papers](papers.md) says where the methods are in the library, and [Measurements](measurements.md) has more
tables.
"""


def main() -> None:
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
