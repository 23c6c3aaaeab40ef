"""Lists the result files that are older than the sources that they measure: `make stale`.

python -m benchmarks.stale            what is older, and by how many commits
python -m benchmarks.stale --dates    also put the date behind each name of a result file in README and docs

A result file names its sources (`measures`), and its runs name their commits. Where the history does not have
a commit, as in a shallow clone, it says so.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CITED = re.compile(
    r"`((?:[\w/]*/)?([\w-]+\.json))`(?: of \d{4}-\d\d-\d\d(?: to \d{4}-\d\d-\d\d)?)?"
)


def runs_of(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a result file; one that holds a single run is that run."""
    return list(content["runs"].values()) if "runs" in content else [content]


def dates_of(content: dict[str, Any]) -> str:
    """The day of a result file, or the first and the last one of its runs."""
    days = [run["date"] for run in runs_of(content)]
    return min(days) if min(days) == max(days) else f"{min(days)} to {max(days)}"


def commits_since(run: dict[str, Any], measures: list[str]) -> int | None:
    """How many commits have changed these paths since that run; None if its commit is not known here."""
    command = ["git", "-C", str(ROOT), "rev-list", "--count", f"{run.get('commit')}..HEAD", "--"]
    try:
        asked = subprocess.run([*command, *measures], capture_output=True, text=True)
    except OSError:
        return None
    return int(asked.stdout) if asked.returncode == 0 else None


def verdict(content: dict[str, Any]) -> str | None:
    """Say why a result file is older than its sources, or that nobody can know it; None if it is not."""
    since = [commits_since(run, content["measures"]) for run in runs_of(content)]
    if None in since:
        unknown = [run.get("commit") for run in runs_of(content)][since.index(None)]
        return f"cannot be compared: commit {unknown} is not in the history here"
    most = max(number for number in since if number is not None)
    return f"{most} commits have changed its sources since" if most else None


def dated(page: str) -> str:
    """Return a page with the date of each result file behind its name."""

    def with_date(found: re.Match[str]) -> str:
        path = RESULTS / found[2]
        if not path.exists():
            return found[0]
        return f"`{found[1]}` of {dates_of(json.loads(path.read_text('utf-8')))}"

    return CITED.sub(with_date, page)


def pages() -> list[Path]:
    names = ("README.md", "CHANGELOG.md", "benchmarks/README.md")
    found = [*(ROOT / name for name in names), *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in found if "_build" not in page.parts)


def main() -> None:
    for path in sorted(RESULTS.rglob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        if said := verdict(content):
            print(f"{path.name} of {dates_of(content)}: {said}")
    if "--dates" in sys.argv[1:]:
        for page in pages():
            page.write_text(dated(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
