"""Tests that are collected once: each mutant runs some of them in a fork, with the code of its functions.

The library and the tests hold the functions themselves. A change in the body of a function reaches all of
them when the function is given other code, and nothing is imported or collected again.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

# what a test of a mutant may take beside the same test without a change; seconds are the processor's, as
# other programs that share the machine must kill no mutant
TIMES, SECONDS, BYTES = 5, 3, 4 << 30
IMPORT_SECONDS = 60
# so many variants of a test are tried, and more of the covering law, in which no two are alike
VARIANTS, LAW, CASES_OF_LAW = 16, "test_every_two_values", 148
# the clock ends a test that waits for ever, after so many times as long
PATIENCE = 10
# no live function has this code, so only importing the module again shows the change
NOT_LIVE = 77


class Job(NamedTuple):
    """Tests to run, in this order, with their seconds, and a change of a function's body."""

    seconds: dict[str, float]
    path: str
    before: str
    after: str


class Watch(NamedTuple):
    """A file whose tests are to be run without a change, to see which lines of modules each runs."""

    file: str
    modules: dict[str, str]


class Collected:
    """Answers jobs in place of running what was collected."""

    def __init__(self, folder: Path, jobs: Connection) -> None:
        self._folder, self._jobs = folder, jobs
        self.watcher: Watcher | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        # what `tests/conftest.py` has frozen, too
        gc.unfreeze()
        gc.collect()
        functions = functions_of(self._folder)
        items = {item.nodeid: item for item in session.items}
        # forks share what is never touched
        gc.freeze()
        self._jobs.send(sorted(items))
        while True:
            try:
                job = self._jobs.recv()
            except EOFError:
                os._exit(0)
            child = os.fork()
            if child == 0:
                self._jobs.close()
                # pytest goes on, with what is left
                self._prepare(session, items, functions, job)
                return None
            self._jobs.send(status_of(child))

    def _prepare(self, session: pytest.Session, items: dict, functions: dict, job: Any) -> None:
        os.setpgrp()
        if isinstance(job, Watch):
            session.items[:] = _some(session.items, job.file)
            self.watcher = Watcher(job.modules, self._folder / "seen.json")
            session.config.pluginmanager.register(self.watcher)
            return
        if not swap(functions[job.path], job):
            os._exit(NOT_LIVE)
        session.items[:] = [items[name] for name in job.seconds]
        session.config.pluginmanager.register(Limits(self._folder, job.seconds))


class Limits:
    """Ends the process when a test takes too long; the last test that began is in a file."""

    def __init__(self, folder: Path, seconds: dict[str, float]) -> None:
        self._began, self._seconds = folder / "began.txt", seconds
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, resource.RLIM_INFINITY))
        # of what comes before the first test
        signal.setitimer(signal.ITIMER_PROF, IMPORT_SECONDS)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began.write_text(nodeid, "utf-8")
        limit = TIMES * self._seconds[nodeid] + SECONDS
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE * limit)


class Watcher:
    """Writes down which lines of modules each test runs, in all of its threads, and how long it takes."""

    def __init__(self, modules: dict[str, str], report: Path) -> None:
        self._modules, self._report = modules, report
        self._seconds: dict[str, float] = {}
        # it is there only where mutants are made
        import coverage

        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, include=list(modules), messages=False
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        start = time.process_time()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.process_time() - start
            self._coverage.switch_context("between tests")

    def write(self) -> dict[str, Any]:
        """Return what was seen: seconds and lines by test."""
        self._coverage.stop()
        data = self._coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for path, module in self._modules.items():
            for line, tests in (data.contexts_by_lineno(path) or {}).items():
                for test in tests:
                    lines[test][module].append(line)
        return {
            test: {"seconds": seconds, "lines": lines[test]}
            for test, seconds in self._seconds.items()
        }


def _some(items: list[pytest.Item], wanted: str) -> list[pytest.Item]:
    """The tests of this file, of those with parameters only some variants, spread over all."""
    variants = defaultdict(list)
    for item in items:
        file, _, name = item.nodeid.partition("::")
        if file == wanted:
            variants[name.partition("[")[0]].append(item)
    found = []
    for name, same in variants.items():
        most = CASES_OF_LAW if name == LAW else VARIANTS
        found += same[:: -(-len(same) // most)]
    return found


def functions_of(folder: Path) -> dict[str, list[FunctionType]]:
    """Every live function of the library's copy, by its file."""
    found = defaultdict(list)
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename.startswith(f"{folder}/pybeam/"):
            found[one.__code__.co_filename].append(one)
    return found


def swap(functions: list[FunctionType], job: Job) -> bool:
    """Give live functions the code that they have after the change; whether there is one that differs."""
    before, after = (
        list(_codes(compile(text, job.path, "exec", dont_inherit=True)))
        for text in (job.before, job.after)
    )
    if [code.co_qualname for code in before] != [code.co_qualname for code in after]:
        return False
    changed = {old: new for old, new in zip(before, after, strict=True) if old != new}
    swapped = [one for one in functions if one.__code__ in changed]
    if any(one.__code__.co_freevars != changed[one.__code__].co_freevars for one in swapped):
        return False
    for one in swapped:
        one.__code__ = changed[one.__code__]
    return bool(swapped)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def status_of(child: int) -> int:
    """Wait for the end of a process; what its tests have left behind ends with it."""
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def quietly(log: Path, call: Callable[[], int]) -> None:
    """End this process with what the call returns, and its output in a file."""
    status = 1
    try:
        with open(log, "wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = call()
    finally:
        os._exit(status)
