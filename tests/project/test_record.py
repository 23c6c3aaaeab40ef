"""The record of the works that pybeam began with is that of its entries and of the files of results."""

from __future__ import annotations

import importlib.util
import re

import pytest

from benchmarks.__main__ import BENCHMARKS
from support.paths import ROOT

SPEC = importlib.util.spec_from_file_location("record", ROOT / "docs" / "record.py")
record = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(record)

WORKS = record.works()
ITEMS = [item for work in WORKS for item in work["item"]]
# tables, figures and theorems of each work, in their order
CONTENTS = [
    {"Figure": 2, "Table": 7, "Algorithm": 1},
    {"Figure": 2, "Table": 3, "Theorem": 4},
    {"Figure": 6, "Table": 7, "Proposition": 1},
    {},
]


def test_the_page_is_that_of_the_files():
    assert record.PAGE.read_text("utf-8") == record.page(), "python docs/record.py writes it"


def test_verdicts_hold():
    assert not [problem for item in ITEMS for problem in record.problems_of(item)]


def numbers_of(what: str, kind: str) -> set[int]:
    """The tables, or others of a kind, that an entry is about."""
    found = re.match(rf"{kind}s? (\d)(?: (and|to) (\d))?", what)
    if found is None:
        return set()
    first, last = int(found[1]), int(found[3] or found[1])
    return {first, last} if found[2] == "and" else {*range(first, last + 1)}


@pytest.mark.parametrize("work, contents", [*zip(WORKS, CONTENTS, strict=True)])
def test_nothing_is_left_out(work, contents):
    for kind, num in contents.items():
        found = set().union(*(numbers_of(item["what"], kind) for item in work["item"]))
        assert found == {*range(1, num + 1)}, kind


def test_commands_exist():
    for item in ITEMS:
        for command in re.findall(r"`([^`]+)`", item.get("command", "")):
            if match := re.fullmatch(
                r"python -m benchmarks ([\w-]+)(?: --only ([\w-]+))?", command
            ):
                assert match[1] in BENCHMARKS
                used = {ref.split(";")[1].strip() for ref in record.REFERENCE.findall(item["here"])}
                assert match[2] is None or match[2] in used or not used, item
            elif match := re.fullmatch(r"(?:pytest|python) (\S+\w)(?: -k (\w+))?.*", command):
                path = ROOT / match[1].removeprefix("-m ")
                assert path.exists() or match[1] == "-m", command
                assert match[2] is None or match[2] in path.read_text("utf-8"), command


def test_runs_are_of_known_commits(monkeypatch):
    item = dict(what="Table 1", here="[[e2e-cpu; example-50; FIXED; BLEU; .2f]]", verdict="repeats")
    monkeypatch.setattr(record, "history", lambda: frozenset({"0123456789"}))
    [problem] = record.problems_of(item)
    assert "which is not in the history" in problem
    [run] = record.runs_of(item).values()
    monkeypatch.setitem(run, "is_dirty", True)
    assert record.problems_of(item) == []
    monkeypatch.setitem(run, "is_dirty", False)
    monkeypatch.setattr(record, "history", lambda: frozenset({run["commit"] + "abc"}))
    assert record.problems_of(item) == []


def test_wrong_entries_are_found():
    item = dict(what="Table 1", here="[[e2e-cpu; example-50; FIXED; BLEU; .2f]]", verdict="missing")
    assert record.problems_of(item) == ["Table 1: it is measured, and called missing"]
    item |= dict(verdict="maybe", check=["1 > 2"])
    assert len(record.problems_of(item)) == 2
    for reference in ("e2e-cpu; example-50; NONE; BLEU; f", "e2e-cpu; example-50; FIXED; NONE; f"):
        with pytest.raises(ValueError, match="must lead to one number, but there are 0 rows"):
            record.number(reference)
    half, _ = record.number("e2e-cpu; example-50; FIXED / GREEDY; steps; f")
    assert (
        half
        == record.number("e2e-cpu; example-50; FIXED; steps; f")[0]
        / record.number("e2e-cpu; example-50; GREEDY; steps; f")[0]
    )


def test_seconds_have_their_deviation(monkeypatch):
    rows = [
        dict(case="a", system="one", seconds=8.0, sd=0.8),
        dict(case="a", system="two", seconds=4.0, sd=0.3, steps=3),
    ]
    monkeypatch.setattr(record, "content", lambda name: {"rows": rows})
    assert record.told("[[x; a; one; seconds; .1f]] s") == "8.0 ± 0.8 s"
    # 2 * sqrt(0.1 ** 2 + 0.075 ** 2)
    assert record.told("[[x; a; one / two; seconds; .2f]]") == "2.00 ± 0.25"
    assert record.told("[[x; a; two; steps; .0f]]") == "3"
    del rows[1]["sd"]
    assert record.told("[[x; a; one / two; seconds; .2f]]") == "2.00"
