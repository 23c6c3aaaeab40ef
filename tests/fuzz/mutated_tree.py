"""Run tests on a copy of the tree of which one module is changed, each time in a fork of a process."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import shutil
import sys
from collections import defaultdict
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# what tests import is imported once, here
import hypothesis  # noqa: F401
import pytest
import safetensors.torch  # noqa: F401
import torch

from fuzz.collected_tests import NOT_LIVE, Collected, Job, Limits, Watch, quietly, status_of

ROOT = Path(__file__).parents[2]
COPIED = ("benchmarks", "examples", "pybeam", "pyproject.toml", "tests")
KILLED, SURVIVED, INVALID = "killed", "survived", "invalid"


class Tree:
    """A copy of the tree, and which test of it runs which lines of the modules that are changed."""

    def __init__(self, folder: Path, laws: dict[str, list[str]], seconds: float) -> None:
        self.folder, self._laws, self._seconds = folder, laws, seconds
        self._files = sorted({file for files in laws.values() for file in files})
        self._known = folder.parent / "seen"
        self._known.mkdir(exist_ok=True)
        self._seen: dict[str, Any] = {}
        # of each function, the tests that noticed a change of it, the last one first
        self._killers: dict[str, list[str]] = defaultdict(list)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "node_modules")
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)
            else:
                shutil.copy2(ROOT / name, folder / name)
        self._server = self._collect()

    def watch(self, file: str) -> None:
        """See which lines each test of this file runs, without a change; all must pass."""
        if self._report(file).exists():
            return
        modules = {str(self.folder / module): module for module in self._laws}
        if self._ask(Watch(file, modules)) != 0:
            log = (self.folder / "collected.txt").read_text("utf-8", "replace")
            raise RuntimeError(f"{log}\n{file} fails without a change; mend that first")
        os.replace(self.folder / "seen.json", self._report(file))

    def outcome(self, module: str, line: int, code: str) -> str:
        """Whether the tests that run this line of the module notice this text of it."""
        try:
            compile(code, module, "exec")
        except SyntaxError:
            return INVALID
        before = (ROOT / module).read_text("utf-8")
        place = f"{module}:{_function(before, line)}"
        own, others = self._running(module, line)
        status = NOT_LIVE
        if own or others:
            chosen = self._chosen([own, others], [self._killers[place], self._killers[module]])
            status = self._ask(Job(chosen, str(self.folder / module), before, code))
        if status == NOT_LIVE:
            # what only an import runs, every test of the module has run
            chosen = self._chosen([own or self._tests(self._laws[module])], [])
            status = self._import(module, code, chosen)
        if status == 0:
            return SURVIVED
        # nothing, if the change could not be imported
        killer = (self.folder / "began.txt").read_text("utf-8")
        for known in (self._killers[place], self._killers[module]):
            if killer in known:
                known.remove(killer)
            known.insert(0, killer)
        return KILLED

    def _running(self, module: str, line: int) -> tuple[dict[str, float], dict[str, float]]:
        """The tests that run this line, with their seconds: those of the module's list, and others."""
        if not is_in_a_function(module, line):
            return {}, {}
        statement = _statement(module, line)
        own, others = {}, {}
        for file in self._files:
            kind = own if file in self._laws[module] else others
            for name, test in self._report_of(file).items():
                if any(one in statement for one in test["lines"].get(module, [])):
                    kind[name] = test["seconds"]
        return own, others

    def _tests(self, files: list[str]) -> dict[str, float]:
        return {
            name: test["seconds"] for file in files for name, test in self._report_of(file).items()
        }

    def _chosen(self, kinds: list[dict[str, float]], known: list[list[str]]) -> dict[str, float]:
        """Tests that noticed changes before, and then the fastest of each kind, with their seconds."""
        every = {name: seconds for kind in kinds for name, seconds in kind.items()}
        killers = [name for names in known for name in names[:5] if name in every]
        chosen = {name: every[name] for name in killers}
        for kind in kinds:
            total = 0.0
            for seconds, name in _cheapest_first(kind):
                total += seconds
                if chosen and total > self._seconds:
                    break
                chosen.setdefault(name, seconds)
        return chosen

    def _report_of(self, file: str) -> dict[str, Any]:
        if file not in self._seen:
            self._seen[file] = json.loads(self._report(file).read_text("utf-8"))
        return self._seen[file]

    def _report(self, file: str) -> Path:
        return self._known / f"{digest_of([file, *self._laws])}.json"

    def _collect(self) -> Connection:
        """Start the process that has collected all tests, and answers jobs."""
        here, there = Pipe()
        if os.fork() == 0:
            here.close()
            plugin = Collected(self.folder, there)

            def call() -> int:
                status = self._test(self._files, plugin)
                if plugin.watcher is not None and status == 0:
                    seen = json.dumps(plugin.watcher.write())
                    (self.folder / "seen.json").write_text(seen, "utf-8")
                return status

            quietly(self.folder / "collected.txt", call)
        there.close()
        try:
            here.recv()
        except EOFError as error:
            log = (self.folder / "collected.txt").read_text("utf-8", "replace")
            raise RuntimeError(f"{log}\nthe tests cannot be collected; mend that first") from error
        return here

    def _ask(self, job: Job | Watch) -> int:
        self._server.send(job)
        return self._server.recv()

    def _import(self, module: str, code: str, seconds: dict[str, float]) -> int:
        """Run tests in a fork that imports the library and the tests with the change."""
        path = self.folder / module
        path.write_text(code, "utf-8")
        child = os.fork()
        if child == 0:
            os.setpgrp()
            files = list(dict.fromkeys(name.partition("::")[0] for name in seconds))
            # importing and collecting may hang, too
            (self.folder / "began.txt").write_text("", "utf-8")
            plugin = Chosen(self.folder, seconds)
            quietly(self.folder / "imported.txt", lambda: self._test(files, plugin))
        status = status_of(child)
        shutil.copy2(ROOT / module, path)
        return status

    def _test(self, files: list[str], plugin: object) -> int:
        """Run these tests of the copy in this process; returns pytest's exit status."""
        os.chdir(self.folder)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sys.path[:0] = [str(self.folder), str(self.folder / "tests")]
        # a module is changed more often than once a second, which is how fine the times of its bytecode are
        sys.dont_write_bytecode = True
        torch.set_num_threads(1)
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", "--unthinned"]
        return int(pytest.main([*options, *files], plugins=[plugin]))


class Chosen(Limits):
    """Leaves only these tests, in this order."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        # a mutant may change which tests there are; then it is noticed
        items[:] = [found[name] for name in self._seconds]


def digest_of(paths: list[str]) -> str:
    """Return a digest of these files of the working tree."""
    texts = b"\0".join((ROOT / path).read_bytes() for path in paths)
    return hashlib.sha256(texts).hexdigest()[:16]


@functools.cache
def is_in_a_function(module: str, line: int) -> bool:
    """Whether a function's body holds this line of a module, so that trying a change of it is fast."""
    return bool(_function((ROOT / module).read_text("utf-8"), line))


def _cheapest_first(tests: dict[str, float]) -> list[tuple[float, str]]:
    """The fastest first, where a variant of a test costs what the faster variants of the test cost, too."""
    spent: dict[str, float] = defaultdict(float)
    ordered = []
    for name, seconds in sorted(tests.items(), key=lambda test: test[1]):
        test = name.partition("[")[0]
        spent[test] += seconds
        ordered.append((spent[test], seconds, name))
    return [(seconds, name) for _, seconds, name in sorted(ordered)]


def _function(text: str, line: int) -> str:
    """The function whose body holds this line, or nothing."""
    found = ""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line <= (
            node.end_lineno or 0
        ):
            found = node.name
    return found


@functools.cache
def _statement(module: str, line: int) -> range:
    """The lines of the smallest statement that holds this one, without the statements that it holds."""
    found = [range(line, line + 1)]
    for node in ast.walk(ast.parse((ROOT / module).read_text("utf-8"))):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef | ast.ClassDef):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or 0) + 1
            if node.lineno <= line < max(end, node.lineno + 1):
                found.append(range(node.lineno, max(end, node.lineno + 1)))
    return min(found[1:] or found, key=len)
