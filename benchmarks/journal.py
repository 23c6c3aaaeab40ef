"""Results on disk: rows of numbers, and the commit, the versions and the machine of each row's run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from functools import cache
from importlib import metadata
from pathlib import Path

import torch
from tabulate import tabulate

from benchmarks.sources import measured_by
from pybeam.cli.machine import cpu, cpu_flags

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    *("torch", "pybeam-search", "transformers", "ctranslate2", "pymarian", "onnxruntime"),
    "sacrebleu",
)
# where the checkout travels without its history, this names its commit
COMMIT = "PYBEAM_COMMIT"


@cache
def environment() -> dict:
    """Commit, versions and machine of this run, as they are when it is first asked for."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    # what this run writes is no change
    places = (":/", ":(exclude,top)benchmarks/results")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", *places)
    return {
        "date": date.today().isoformat(),
        "commit": os.environ.get(COMMIT) or _git("rev-parse", "--short=10", "HEAD"),
        "is_dirty": None if changes is None else bool(changes),
        "python": platform.python_version(),
        **versions,
        "cpu": cpu(),
        "cpu_flags": " ".join(cpu_flags()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
    }


def _git(*arguments: str) -> str | None:
    """The commit of this checkout by git; None where there is no git or no history."""
    command = ["git", "-C", str(RESULTS.parent), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def results_folder(device: str) -> Path:
    """``$OUT`` if it is set, else ``benchmarks/results/``, and below it the GPU's own folder."""
    if os.environ.get("OUT"):
        return Path(os.environ["OUT"])
    if device == "cpu":
        return RESULTS
    return RESULTS / torch.cuda.get_device_name().lower().replace(" ", "-")


class Journal:
    """The rows that have been measured so far, and the time that is left.

    Rows stand in `<name>.json` of the folder, what was said in `<name>.log`. The file is written after
    every row, so that an interrupted run keeps what it has. `identity` names the columns that tell rows
    apart: a row takes the place of the one that is equal in them, also of one that an earlier run left
    in the file. `runs` says which run each row is of.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        identity: tuple[str, ...],
        settings: dict | None = None,
        minutes: float | None = None,
    ) -> None:
        self._path, self._log = folder / f"{name}.json", folder / f"{name}.log"
        self._identity = identity
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        folder.mkdir(parents=True, exist_ok=True)
        old = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.machine: dict = old.get("machine", {})
        self.rows: list[dict] = old.get("rows", [])
        self._runs: dict[str, dict] = old.get("runs", {})
        self.run = str(1 + max(map(int, self._runs), default=0))
        self._runs[self.run] = environment() | (settings or {})
        self._log.write_text("")

    @property
    def path(self) -> Path:
        return self._path

    @property
    def is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    @property
    def own_rows(self) -> list[dict]:
        """Those of this run."""
        return [row for row in self.rows if row["run"] == self.run]

    def say(self, line: str) -> None:
        print(line, flush=True)
        # the line has been said, and a full disk is no reason to stop
        with suppress(OSError), self._log.open("a") as log:
            log.write(line + "\n")

    def add(self, row: dict) -> None:
        row = {**row, "run": self.run}
        place = self._place(row)
        places = [i for i, old in enumerate(self.rows) if self._place(old) == place]
        if places:
            self.rows[places[0]] = row
        else:
            self.rows.append(row)
        if not self.save():
            print(json.dumps(row), flush=True)

    def attempt(self, row: dict, measure: Callable[[], dict]) -> dict | None:
        """Add a row with what was measured, which is returned, or with the error that came instead."""
        if self.is_over:
            return None
        try:
            numbers = measure()
        except Exception as error:
            failed = {**row, "error": f"{type(error).__name__}: {error}"[:300]}
            self.add(failed)
            self.say("  ".join(f"{name}={value}" for name, value in failed.items()))
            print(traceback.format_exc(), file=sys.stderr)
            return None
        self.add({**row, **numbers})
        return numbers

    def save(self, is_complete: bool = False) -> bool:
        """Write all rows. Returns False, with a message, if the disk refuses: the next call tries again."""
        used = {row["run"] for row in self.rows} | {self.run}
        data = {
            "machine": self.machine,
            "is_complete": is_complete,
            "measures": list(measured_by(self._path.stem)),
            "runs": {name: run for name, run in self._runs.items() if name in used},
            "rows": self.rows,
        }
        # under another name first, so that Ctrl-C cannot leave half a file
        unfinished = self._path.with_name(f".{self._path.name}")
        try:
            unfinished.write_text(json.dumps(data, indent=1) + "\n")
            unfinished.replace(self._path)
        except OSError as error:
            print(f"{self._path} could not be written: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def finish(self, *tables: list[dict]) -> None:
        """Mark the run complete unless time ran out, and print the tables."""
        self.save(is_complete=not self.is_over)
        for rows in tables:
            self.say("\n" + table(rows))
        if self.machine:
            self.say("  ".join(f"{name}={value}" for name, value in self.machine.items()))
        if self.is_over:
            self.say("time was over before everything was measured")

    def _place(self, row: dict) -> tuple:
        return tuple(row.get(column) for column in self._identity)


def table(rows: list[dict]) -> str:
    """Rows under the columns of all; what is a list or belongs to a whole run is left out."""
    shown = [
        {k: v for k, v in row.items() if k != "run" and not isinstance(v, list | dict)}
        for row in rows
    ]
    return tabulate(shown, headers="keys", floatfmt=".4g", tablefmt="github")
