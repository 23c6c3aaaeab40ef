"""Run tests on a copy of the tree of which one module is changed, each time in a fork of this process."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# what tests import is imported once, here
import hypothesis  # noqa: F401
import pytest
import safetensors.torch  # noqa: F401
import torch

ROOT = Path(__file__).parents[2]
COPIED = ("benchmarks", "examples", "pybeam", "pyproject.toml", "tests")
# what a mutant may take beside the same tests without a change; seconds are the processor's, as other
# programs that share the machine must kill no mutant
TIMES, SECONDS, BYTES = 4, 20, 4 << 30
# of a file of tests without a change
BASELINE_SECONDS = 600
# the clock ends a test that waits for ever, after so many times as long
PATIENCE = 8
# of the fastest tests that run a line; slower ones are left out
ENOUGH_SECONDS = 40


class Tree:
    """A copy of the tree, and which test of it runs which lines of the modules that are changed."""

    def __init__(self, folder: Path, modules: list[str]) -> None:
        self.folder, self._modules = folder / "tree", modules
        shutil.rmtree(self.folder, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", "node_modules")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.folder / name, ignore=ignored)
            else:
                shutil.copy2(ROOT / name, self.folder / name)
        self._known = folder / "watched.json"
        # by the digest of a file of tests and the modules
        self._watched = json.loads(self._known.read_text("utf-8")) if self._known.exists() else {}

    def passes(self, module: str, line: int, code: str, tests: list[str]) -> bool:
        """Whether the tests that run this line of the module pass with this text of it, fastest first."""
        chosen = self._chosen(module, line, tests)
        if not chosen:
            return True
        path = self.folder / module
        path.write_text(code, "utf-8")
        try:
            limit = int(TIMES * sum(chosen.values()) + SECONDS)
            files = list(dict.fromkeys(name.partition("::")[0] for name in chosen))
            return self._fork(lambda: self._test(files, Chosen(chosen)), limit)
        finally:
            shutil.copy2(ROOT / module, path)

    def _chosen(self, module: str, line: int, tests: list[str]) -> dict[str, float]:
        """The fastest tests that run this line, with their seconds."""
        statements = _statements(ROOT / module)
        found = [
            (test["seconds"], name)
            for file in tests
            for name, test in self._seen(file).items()
            if _is_run(line, test["lines"].get(module, []), statements)
        ]
        chosen, total = {}, 0.0
        for seconds, name in sorted(found):
            total += seconds
            if chosen and total > ENOUGH_SECONDS:
                break
            chosen[name] = seconds
        return chosen

    def _seen(self, file: str) -> dict[str, Any]:
        """Which lines of the modules each test of a file runs, and how long it takes; all must pass."""
        digest = digest_of([file, *self._modules])
        if digest not in self._watched:
            report = self.folder / "seen.json"
            watcher = Watcher(self.folder, self._modules, report)
            if not self._fork(lambda: self._test([file], watcher), BASELINE_SECONDS):
                log = (self.folder / "log.txt").read_text("utf-8", "replace")
                sys.exit(f"{log}\n{file} fails without a change; mend that first")
            self._watched[digest] = json.loads(report.read_text("utf-8"))
            self._known.write_text(json.dumps(self._watched), "utf-8")
        return self._watched[digest]

    def _fork(self, call: Callable[[], int], limit: int) -> bool:
        """Whether this call returns 0 in a process of its own, within so many seconds of the processor."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.setpgrp()
            resource.setrlimit(resource.RLIMIT_CPU, (limit, -1))
            status = 1
            try:
                status = call()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        # what a test has started and left behind ends with it
        timer = threading.Timer(PATIENCE * limit, os.killpg, (child, signal.SIGKILL))
        timer.start()
        _, status = os.waitpid(child, 0)
        timer.cancel()
        return status == 0

    def _test(self, tests: list[str], plugin: Watcher | Chosen) -> int:
        """Run these tests of the copy in this process; returns pytest's exit status."""
        with open(self.folder / "log.txt", "wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, resource.RLIM_INFINITY))
        os.chdir(self.folder)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sys.path[:0] = [str(self.folder), str(self.folder / "tests")]
        # a module is changed more often than once a second, which is how fine the times of its bytecode are
        sys.dont_write_bytecode = isinstance(plugin, Chosen)
        torch.set_num_threads(1)
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
        return pytest.main([*options, *tests], plugins=[plugin])


class Watcher:
    """Writes down which lines of these modules each test runs, and how long it takes."""

    def __init__(self, folder: Path, modules: list[str], report: Path) -> None:
        self._modules = {str(folder / module): module for module in modules}
        self._report = report
        self._lines: dict[str, set[int]] = {}
        self._seen: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines, start = defaultdict(set), time.process_time()
        sys.settrace(self._on_call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            lines = {module: sorted(lines) for module, lines in self._lines.items()}
            self._seen[item.nodeid] = {"seconds": time.process_time() - start, "lines": lines}

    def pytest_sessionfinish(self) -> None:
        self._report.write_text(json.dumps(self._seen), "utf-8")

    def _on_call(self, frame: Any, event: str, arg: object) -> Callable[..., Any] | None:
        return self._on_line if frame.f_code.co_filename in self._modules else None

    def _on_line(self, frame: Any, event: str, arg: object) -> Callable[..., Any]:
        self._lines[self._modules[frame.f_code.co_filename]].add(frame.f_lineno)
        return self._on_line


class Chosen:
    """Leaves only these tests, by their seconds, the fastest first."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._seconds]
        # a mutant may change which tests there are; then it is noticed
        assert len(chosen) == len(self._seconds)
        items[:] = sorted(chosen, key=lambda item: self._seconds[item.nodeid])


def digest_of(paths: list[str]) -> str:
    """Return a digest of these files of the working tree."""
    texts = b"\0".join((ROOT / path).read_bytes() for path in paths)
    return hashlib.sha256(texts).hexdigest()[:16]


def _is_run(line: int, lines: list[int], statements: list[range]) -> bool:
    """Whether one of these lines belongs to the same statement; what no function holds, imports run."""
    around = [statement for statement in statements if line in statement]
    if not around:
        return True
    smallest = min(around, key=len)
    return any(one in smallest for one in lines)


def _statements(path: Path) -> list[range]:
    """The lines of every statement in a function, without the statements that it holds."""
    found = []
    for function in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(function, ast.FunctionDef):
            for node in (child for one in function.body for child in ast.walk(one)):
                if isinstance(node, ast.stmt):
                    body = getattr(node, "body", None)
                    end = body[0].lineno if body else (node.end_lineno or 0) + 1
                    found.append(range(node.lineno, max(end, node.lineno + 1)))
    return found
