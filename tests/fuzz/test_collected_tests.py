"""A change of a module's functions reaches whoever holds them, without importing anything again."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

from fuzz.collected_tests import Job, functions_of, swap
from support.paths import ROOT

TEXT = """
LIMIT = 3

class Pair:
    @property
    def total(self):
        return sum(map(lambda one: one + 1, [1, 2]))

def outer(step):
    def inner(value):
        return value + step
    return inner
"""


@pytest.fixture
def module(tmp_path):
    (tmp_path / "pybeam").mkdir()
    path = tmp_path / "pybeam" / "changed.py"
    path.write_text(TEXT, "utf-8")
    spec = importlib.util.spec_from_file_location("changed", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def changed(module, tmp_path, old, new) -> bool:
    path = str(tmp_path / "pybeam" / "changed.py")
    assert old in TEXT
    job = Job({}, path, TEXT, TEXT.replace(old, new))
    return swap(functions_of(tmp_path)[path], job)


def test_methods_and_what_functions_hold_change(module, tmp_path):
    outer, pair = module.outer, module.Pair()
    assert (outer(1)(4), pair.total) == (5, 5)
    assert changed(module, tmp_path, "value + step", "value * step")
    assert outer(3)(4) == 12
    assert changed(module, tmp_path, "one + 1", "one - 1")
    assert pair.total == 1


def test_a_closure_that_exists_changes(module, tmp_path):
    inner = module.outer(3)
    assert changed(module, tmp_path, "value + step", "value - step")
    assert inner(4) == 1


def test_what_only_an_import_runs_is_not_live(module, tmp_path):
    assert not changed(module, tmp_path, "LIMIT = 3", "LIMIT = 4")


def test_other_variables_of_a_closure_are_not_live(module, tmp_path):
    inner = module.outer(3)
    assert not changed(module, tmp_path, "value + step", "value")
    assert inner(4) == 7


def test_each_line_that_is_not_changed_is_a_line():
    operators = pytest.importorskip("cosmic_ray.plugins").operator_names()
    path = Path(__file__).with_name("equivalent_mutants.toml")
    for reason in tomllib.loads(path.read_text("utf-8"))["reason"]:
        assert reason.pop("why")
        for ending in reason.pop("operators", []):
            assert any(name.endswith(ending) for name in operators), ending
        for file, begins in reason.items():
            lines = [line.strip() for line in (ROOT / file).read_text("utf-8").splitlines()]
            for begin in begins:
                assert any(line.startswith(begin) for line in lines), f"{file} has no line {begin}"
