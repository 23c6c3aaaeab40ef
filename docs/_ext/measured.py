"""The directive `measured`: a table of rows of a file in benchmarks/results, as they were measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from benchmarks.stale import commits_since

NAMES = ("case", "system")  # columns of words
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def _names(argument: str) -> list[str]:
    return [name.strip() for name in argument.split("|")]


class Measured(SphinxDirective):
    """```{measured} translate-cpu``` with `case: A | B` and `columns: system | lines/s | BLEU`."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = dict.fromkeys(("case", "columns"), _names) | {
        "digits": directives.nonnegative_int
    }

    def run(self) -> list[nodes.Node]:
        path = RESULTS / f"{self.arguments[0]}.json"
        self.env.note_dependency(str(path))
        content = json.loads(path.read_text("utf-8"))
        cases, columns = self.options["case"], self.options["columns"]
        rows = [row for case in cases for row in content["rows"] if row["case"] == case]
        rows = [row for row in rows if any(name in row for name in columns if name not in NAMES)]
        missing = [case for case in cases if not any(row["case"] == case for row in rows)]
        if missing:
            raise self.error(f"{path.name} has no rows with these columns for {missing}")
        lines = [self._line(name.replace("_", " ") for name in columns)]
        lines += [self._line(":--" if name in NAMES else "--:" for name in columns)]
        lines += [self._line(self._shown(row.get(name)) for name in columns) for row in rows]
        runs = sorted({row["run"] for row in rows}, key=int)
        said = [_run(content["runs"][run], content["measures"]) for run in runs]
        origin = f"`{path.name}`: " + "; ".join(dict.fromkeys(said)) + "."
        return self.parse_text_to_nodes("\n".join([*lines, "", origin]))

    @staticmethod
    def _line(cells: Any) -> str:
        return f"| {' | '.join(cells)} |"

    def _shown(self, value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.{self.options.get('digits', 2)}f}"
        if isinstance(value, int):
            return f"{value:,}"
        if isinstance(value, list):
            return ", ".join(map(self._shown, value))
        return "" if value is None else f"{value}".replace("|", "\\|")


def _run(run: dict[str, Any], measures: list[str]) -> str:
    older = ", older than the code that it measures" if commits_since(run, measures) else ""
    changed = " with changes" if run["is_dirty"] else ""
    threads = "" if run.get("threads") is None else f", {run['threads']} threads"
    threads = threads.replace("1 threads", "1 thread")
    # a forecast of a GPU is computed on a CPU
    machine = run.get("gpu") or run["cpu"]
    return f"{run['date']}, commit `{run['commit']}`{changed}, {machine}{threads}{older}"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True}
