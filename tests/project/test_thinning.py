"""Which cases of a thinned test are quick: the same ones always, and every value among them."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import workers
from support.thinning import mark_the_rest_slow

ROOT = Path(__file__).parents[2]
SIZES = dict(backend=2, name=7, seed=3)


class Case:
    """As much of a pytest.Item as is looked at."""

    def __init__(self, test: str, places: dict[str, int], *marks: pytest.Mark) -> None:
        self.name = f"{test}[{'-'.join(map(str, places.values()))}]"
        self.nodeid = f"tests/test_file.py::{self.name}"
        self.callspec = SimpleNamespace(params=places)
        self.marks = {mark.name: mark for mark in marks}

    def get_closest_marker(self, name: str):
        return self.marks.get(name)

    def add_marker(self, name: str) -> None:
        self.marks[name] = getattr(pytest.mark, name).mark


def cases(test: str, *marks: pytest.Mark) -> list[Case]:
    places = [
        dict(zip(SIZES, place, strict=True)) for place in product(*map(range, SIZES.values()))
    ]
    return [Case(test, place, *marks) for place in places]


def quick(items: list[Case]) -> list[Case]:
    mark_the_rest_slow(items)
    return [item for item in items if "slow" not in item.marks]


def values(items: list[Case], *names: str) -> set[tuple]:
    return {tuple(item.callspec.params[name] for name in names) for item in items}


def test_every_value_has_a_quick_case():
    kept = quick(cases("test_a", pytest.mark.thinned().mark))
    assert [len(values(kept, name)) for name in SIZES] == [2, 7, 3]
    assert len(kept) <= sum(SIZES.values())


def test_every_pair_has_a_quick_case():
    kept = quick(cases("test_a", pytest.mark.thinned(together=2).mark))
    for one, other in (("backend", "name"), ("backend", "seed"), ("name", "seed")):
        assert len(values(kept, one, other)) == SIZES[one] * SIZES[other]
    assert len(kept) < 42


def test_the_choice_does_not_hang_on_order_or_on_other_tests():
    marks = [pytest.mark.thinned().mark]
    alone = {item.name for item in quick(cases("test_a", *marks))}
    both = [*cases("test_b", *marks), *cases("test_a", *marks)][::-1]
    assert {item.name for item in quick(both) if item.name.startswith("test_a")} == alone


def test_the_reference_comes_last():
    """So that it has one case of a test without pairs: those that only it covers are none."""
    items = cases("test_a", pytest.mark.thinned().mark)
    for item in items:
        item.callspec.params["backend"] = ["reference", "native"][item.callspec.params["backend"]]
    kept = [item.callspec.params["backend"] for item in quick(items)]
    assert kept.count("reference") == 1 and kept.count("native") >= 7


def test_others_stay_as_they_are():
    items = [*cases("test_a"), *cases("test_b", pytest.mark.slow.mark)]
    assert len(quick(items)) == 42
    slow = cases("test_c", pytest.mark.thinned().mark)
    slow[0].add_marker("slow")
    slow[5].add_marker("slow")
    assert len(values(quick(slow), "name")) == 7


def test_long_tests_that_are_not_marked_are_named():
    """Behind a run, the longest first; what a module makes for all its tests is not theirs."""

    def report(name: str, when: str, seconds: float, *marks: str):
        return SimpleNamespace(
            nodeid=name, when=when, duration=seconds, keywords=dict.fromkeys(marks)
        )

    reports = [
        report("short", "call", 0.9),
        report("long", "call", 1.4),
        report("longer", "call", 3.0),
        report("first", "setup", 5.0),
        report("marked", "call", 9.0, "slow"),
        report("a case of a law", "call", 8.0, "thinned"),
        # xdist's of a worker that has ended
        SimpleNamespace(),
    ]
    lines = workers.unmarked(reports)
    assert [line.rpartition(" ")[2] for line in lines] == ["longer", "long"]
    many = [report(str(i), "call", 2.0 + i) for i in range(30)]
    assert len(workers.unmarked(many)) == workers.MOST_NAMES


@pytest.mark.slow
def test_a_list_of_tests_has_their_cases_whatever_the_number_of_workers():
    options = ("--collect-only", "-q", "-n", "2", "tests/study/test_rules.py")
    run = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, capture_output=True)
    assert b"test_rules_in_plain_python[native-" in run.stdout
