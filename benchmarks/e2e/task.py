"""One thing to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# the columns that tell rows apart
IDENTITY = ("part", "system", "load")


@dataclass(frozen=True)
class Task:
    """A row of the results: its first columns, and what fills the others.

    With `repeats`, `run` is called again while time remains, and returns what it knows by then.
    """

    row: dict
    run: Callable[[], dict]
    repeats: bool = False

    @property
    def name(self) -> str:
        return f"{self.row['part']}/{self.row['system']}"
