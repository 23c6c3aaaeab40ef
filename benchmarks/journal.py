"""Rows of numbers, written to disk after every one, so that an interrupted run keeps what it has."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import report


def results_folder() -> Path:
    """``$OUT`` if it is set, else ``benchmarks/results/<gpu>/``."""
    if os.environ.get("OUT"):
        return Path(os.environ["OUT"])
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return report.RESULTS / gpu.lower().replace(" ", "-")


class Journal:
    """What has been measured so far, and how much time is left.

    Rows stand in `<name>.json` of the folder, what was said in `<name>.log`. With `identity`, the names
    of the columns that tell rows apart, a row takes the place of the one that is equal in them,
    also of one that an earlier run left in the file; `runs` then says which run each row is of.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        minutes: float,
        identity: tuple[str, ...] = (),
        settings: dict | None = None,
    ) -> None:
        self.machine: dict = {}
        self._path, self._log = folder / f"{name}.json", folder / f"{name}.log"
        self._identity = identity
        self._deadline = time.monotonic() + 60 * minutes
        folder.mkdir(parents=True, exist_ok=True)
        old = json.loads(self._path.read_text()) if identity and self._path.exists() else {}
        self.rows: list[dict] = old.get("rows", [])
        self._runs: dict[str, dict] = old.get("runs", {})
        if identity:
            self._run = str(1 + max(map(int, self._runs), default=0))
            self._runs[self._run] = report.environment() | (settings or {})
        self._log.write_text("")

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def say(self, line: str) -> None:
        print(line, flush=True)
        with self._log.open("a") as log:
            log.write(line + "\n")

    def add(self, row: dict) -> None:
        if self._identity:
            self._replace({**row, "run": self._run})
        else:
            self.rows.append(row)
        self.save()
        self.say("  ".join(f"{name}={_short(value)}" for name, value in row.items()))

    def attempt(self, row: dict, measure: Callable[[], dict]) -> dict | None:
        """Add a row with what was measured, which is returned, or with the error that came instead."""
        if self.is_over:
            return None
        try:
            numbers = measure()
        except Exception as error:
            self.add({**row, "error": f"{type(error).__name__}: {error}"[:300]})
            print(traceback.format_exc(), file=sys.stderr)
            return None
        self.add({**row, **numbers})
        return numbers

    def save(self, is_complete: bool = False) -> None:
        data = {"machine": self.machine, "is_complete": is_complete}
        if self._identity:
            used = {row["run"] for row in self.rows} | {self._run}
            data["runs"] = {name: run for name, run in self._runs.items() if name in used}
        report.write(self._path.stem, self._path, {**data, "rows": self.rows})

    def finish(self, *tables: list[dict]) -> None:
        """Mark the run complete unless time ran out, and print the tables."""
        self.save(is_complete=not self.is_over)
        for table in tables:
            self.say("\n" + report.table(table))
        self.say("  ".join(f"{name}={value}" for name, value in self.machine.items()))
        if self.is_over:
            self.say("time was over before everything was measured")

    def _replace(self, row: dict) -> None:
        place = self._place(row)
        places = [i for i, old in enumerate(self.rows) if self._place(old) == place]
        if places:
            self.rows[places[0]] = row
        else:
            self.rows.append(row)

    def _place(self, row: dict) -> tuple:
        return tuple(row.get(column) for column in self._identity)


def _short(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value[:60] if isinstance(value, str) else value
