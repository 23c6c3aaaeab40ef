"""The tasks to measure, and the one timer: systems take turns, so that noise of the machine is shared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.journal import Journal, table

IDENTITY = ("case", "system")
Run = Callable[[], Any]


@dataclass(frozen=True)
class Task:
    """A row of the results: its first columns, and what fills the others.

    With `repeats`, `measure` is called so often, and returns what it knows by then.
    """

    case: str
    system: str
    measure: Callable[[], dict]
    repeats: int | None = None
    threads: int | None = None
    more: Mapping = field(default_factory=dict)

    @property
    def row(self) -> dict:
        return {"case": self.case, "system": self.system, **self.more}

    def is_wanted(self, names: Sequence[str]) -> bool:
        """A name is a case, or a case, a slash and the beginning of a system."""
        own = f"{self.case}/{self.system}"
        return not names or any(
            own.startswith(name) if "/" in name else name == self.case for name in names
        )


class Timed:
    """The turns of one system; seconds are the median of those so far, and `sd` is their standard deviation.

    Args:
        make: gives what is timed; called before the first turn, and warms it up. A method
            `columns(timed)` of what it gives says what else the row has.
        baseline: its seconds over ours are the column "times the first".
        calls: so many calls follow one another in a turn, whose median counts; for microseconds.
    """

    def __init__(
        self, make: Callable[[], Run], baseline: Timed | None = None, calls: int = 1
    ) -> None:
        self._make, self._calls, self._baseline = make, calls, baseline
        self.run: Run | None = None
        self.output: Any = None
        self._seconds: list[float] = []
        self._cpu_seconds: list[float] = []

    @property
    def seconds(self) -> float:
        return statistics.median(self._seconds)

    @property
    def cpu_seconds(self) -> float:
        """Seconds of all threads. Other programs change `seconds` more, while threads do not spin."""
        return statistics.median(self._cpu_seconds)

    @property
    def is_measured(self) -> bool:
        """Whether it has had a turn, and has not failed."""
        return bool(self._seconds)

    @property
    def baseline(self) -> Timed | None:
        """None also while it has not been measured."""
        return self._baseline if self._baseline is not None and self._baseline.is_measured else None

    def __call__(self) -> dict:
        if self.run is None:
            self.run = self._make()
        turn = []
        cpu_start = time.process_time()
        for _ in range(self._calls):
            start = time.perf_counter()
            self.output = self.run()
            turn.append(time.perf_counter() - start)
        self._cpu_seconds.append((time.process_time() - cpu_start) / self._calls)
        self._seconds.append(statistics.median(turn))
        row = {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "repeats": len(self._seconds),
        }
        if len(self._seconds) > 1:
            row["spread"] = _spread(self._seconds)
            row["cpu_spread"] = _spread(self._cpu_seconds)
        if len(self._seconds) > 2:
            row["sd"] = statistics.stdev(self._seconds)
            row["cpu_sd"] = statistics.stdev(self._cpu_seconds)
        if self.baseline is not None:
            row["times the first"] = self.baseline.seconds / self.seconds
            if isinstance(self.output, list):
                same = [a == b for a, b in zip(self.output, self.baseline.output, strict=True)]
                row["same outputs"] = sum(same) / len(same)
        return row | getattr(self.run, "columns", lambda timed: {})(self)


def _spread(turns: list[float]) -> float:
    """The slowest turn less the fastest one, as a share of the median."""
    return (max(turns) - min(turns)) / max(statistics.median(turns), 1e-9)


def in_turn(
    case: str,
    makers: Mapping[str, Callable[[], Run]],
    repeats: int = 3,
    threads: int | None = None,
    calls: int = 1,
) -> list[Task]:
    """Systems by name that do the same job; the others are compared with the first."""
    first: Timed | None = None
    tasks = []
    for name, make in makers.items():
        timed = Timed(make, first, calls)
        first = first or timed
        tasks.append(Task(case, name, timed, repeats, threads))
    return tasks


def measure(
    cases: Iterable[list[Task]],
    journal: Journal,
    threads: int,
    repeats: int | None = None,
    is_broad: bool = False,
) -> None:
    """Measure the tasks of every case in turn, and print each case's table.

    A case is asked for when those before it have been measured, so it may depend on their rows.
    `is_broad` measures all once before any is repeated, for when time may run out. Then the turns of a
    case follow that it has left, and it is loaded again.
    """
    again: list[list[Task]] = []
    with tqdm(unit="turn", disable=None, leave=False) as bar:

        def take_turns(tasks: list[Task], turns: Iterable[int]) -> None:
            for turn in turns:
                for task in tasks:
                    if turn < _turns(task, repeats) and not journal.is_over:
                        bar.set_description(f"{task.case}/{task.system}")
                        torch.set_num_threads(task.threads or threads)
                        journal.attempt(task.row, task.measure)
                        bar.update()

        def most(tasks: list[Task]) -> int:
            return max(_turns(task, repeats) for task in tasks)

        # what a case has loaded goes when the next one takes its name here
        for tasks in cases:
            bar.total = (bar.total or 0) + sum(_turns(task, repeats) for task in tasks)
            take_turns(tasks, [0] if is_broad else range(most(tasks)))
            if is_broad:
                again.append(tasks)
                _unload(tasks)
            else:
                _show(journal, tasks)
        for tasks in again:
            take_turns(tasks, range(1, most(tasks)))
            _unload(tasks)
            _show(journal, tasks)


def _unload(tasks: list[Task]) -> None:
    """Forget what is timed, such as decoders: a GPU captures steps of 32 at once."""
    for task in tasks:
        if isinstance(task.measure, Timed):
            task.measure.run = None


def _turns(task: Task, repeats: int | None) -> int:
    return 1 if task.repeats is None else repeats or task.repeats


def _show(journal: Journal, tasks: list[Task]) -> None:
    measured = [
        row
        for row in journal.own_rows
        if any(task.row.items() <= row.items() for task in tasks) and "error" not in row
    ]
    if measured:
        with tqdm.external_write_mode():
            journal.say("\n" + table(measured))
