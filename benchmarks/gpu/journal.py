"""Rows of numbers, written to disk after every one, so that an interrupted run keeps what it has."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.gpu.summary import summary

NAME = "gpu-bench"


def results_folder() -> Path:
    """``$OUT`` if it is set, else ``benchmarks/results/<gpu>/``."""
    if os.environ.get("OUT"):
        return Path(os.environ["OUT"])
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return report.RESULTS / gpu.lower().replace(" ", "-")


class Journal:
    """What has been measured so far, and how much time is left."""

    def __init__(self, folder: Path, minutes: float):
        self.rows: list[dict] = []
        self.machine: dict = {}
        self._path = folder / f"{NAME}.json"
        self._log = folder / f"{NAME}.log"
        self._deadline = time.monotonic() + 60 * minutes
        folder.mkdir(parents=True, exist_ok=True)
        self._log.write_text("")

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def say(self, line: str) -> None:
        print(line, flush=True)
        with self._log.open("a") as log:
            log.write(line + "\n")

    def add(self, row: dict) -> None:
        self.rows.append(row)
        self.save()
        self.say("  ".join(f"{name}={_short(value)}" for name, value in row.items()))

    def measure(
        self, row: dict, time_it: Callable[[], float], num_bytes: int | None = None
    ) -> float | None:
        """Add a row with microseconds, or with the error that came instead."""
        if self.is_over:
            return None
        try:
            us = time_it()
        except Exception as error:
            self.add({**row, "error": f"{type(error).__name__}: {error}"[:300]})
            print(traceback.format_exc(), file=sys.stderr)
            return None
        numbers = {"us": round(us, 2)}
        if num_bytes is not None:
            rate = num_bytes / us / 1e3
            numbers["gb_per_s"] = round(rate, 1)
            if "copy_gb_per_s" in self.machine:
                numbers["of_copy"] = round(rate / self.machine["copy_gb_per_s"], 3)
        self.add({**row, **numbers})
        return us

    def save(self) -> None:
        data = {"machine": self.machine, "is_complete": False, "rows": self.rows}
        report.write(NAME, self._path, data)

    def finish(self) -> None:
        """Mark the run complete unless time ran out, and print the table."""
        data = {"machine": self.machine, "is_complete": not self.is_over, "rows": self.rows}
        report.write(NAME, self._path, data)
        self.say("\n" + report.table(summary(self.rows)))
        self.say("  ".join(f"{name}={value}" for name, value in self.machine.items()))
        if self.is_over:
            self.say("time was over before everything was measured")


def _short(value: object) -> object:
    return value[:60] if isinstance(value, str) else value
