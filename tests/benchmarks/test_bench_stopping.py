"""The benchmark of stop rules runs on next to nothing, keeps what it has, and picks what is best on dev."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

for module in ("tabulate", "sacrebleu", "sentencepiece", "matplotlib"):
    pytest.importorskip(module)

from benchmarks import __main__, plots, stopping  # noqa: E402
from benchmarks.stopping import BOUNDED, FIXED, NORM, OPTIMAL, REWARD, TOP  # noqa: E402
from support.tiny_corpus import write_corpus  # noqa: E402

DECODERS = {TOP, NORM, REWARD, FIXED, OPTIMAL, BOUNDED}


def measure(folder: Path, monkeypatch, *more: str) -> dict:
    write_corpus(folder, "dev", "test")
    monkeypatch.setenv("OUT", str(folder))
    options = ["stopping", "--dry-run", "--data", str(folder), *more]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *options])
    __main__.main()
    return json.loads((folder / "stopping-cpu.json").read_text())


@pytest.mark.slow
def test_every_decoder_at_every_width(tmp_path, monkeypatch):
    data = measure(tmp_path, monkeypatch)
    assert data["is_complete"]
    rows = {(r["case"], r["system"], r["width"]): r for r in data["rows"] if "BLEU" in r}
    assert {place[1:] for place in rows if place[0] == "dev"} == {
        (name, width) for name in DECODERS for width in (1, 2)
    }
    assert {place[1] for place in rows if place[0] == "test"} == DECODERS
    for width in (1, 2):
        optimal, top = (rows["dev", name, width] for name in (OPTIMAL, TOP))
        assert optimal["log prob"] >= top["log prob"]
        assert optimal["steps"] <= top["steps"]
        assert rows["dev", BOUNDED, width]["log prob"] <= optimal["log prob"] + 1e-6
    beside = [row for row in data["rows"] if "beside" in row]
    assert {(row["system"], row["beside"]) for row in beside} == {
        (OPTIMAL, TOP),
        (OPTIMAL, NORM),
        (BOUNDED, NORM),
    }
    assert all(row["later"] == 0 for row in beside if row["beside"] == TOP)
    (run,) = data["runs"].values()
    assert run["torch"] and run["cpu"] and run["command"].startswith("python -m benchmarks")
    drawings = plots.draw(tmp_path / "stopping-cpu.json")
    assert [path.stem for path in drawings] == [
        f"stopping-cpu-{name}" for name in ("quality", "bleu", "reward")
    ]


@pytest.mark.slow
def test_an_interrupted_run_keeps_its_rows(tmp_path, monkeypatch):
    tasks, calls = stopping.Bench.tasks, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return tasks(*arguments)

    monkeypatch.setattr(stopping.Bench, "tasks", interrupted)
    with pytest.raises(SystemExit, match="what has been measured is kept"):
        measure(tmp_path, monkeypatch)
    data = json.loads((tmp_path / "stopping-cpu.json").read_text())
    assert not data["is_complete"]
    assert {row["system"] for row in data["rows"]} == {TOP, NORM, REWARD}
    monkeypatch.setattr(stopping.Bench, "tasks", tasks)
    again = measure(tmp_path, monkeypatch)
    assert again["is_complete"]
    assert again["runs"].keys() == {"2"}, "all rows were measured again"


def test_what_is_best_on_dev():
    rows = [
        {"system": OPTIMAL, "r": 0.0, "width": 4, "BLEU": 30.0, "length ratio": 0.9},
        {"system": OPTIMAL, "r": 0.0, "width": 9, "BLEU": 30.0, "length ratio": 0.8},
        {"system": BOUNDED, "r": 0.5, "width": 4, "BLEU": 31.0, "length ratio": 0.9},
        {"system": BOUNDED, "r": 1.0, "width": 9, "BLEU": 32.0, "length ratio": 1.0},
        {"system": BOUNDED, "r": 1.0, "width": 4, "BLEU": 29.0, "length ratio": 1.0},
    ]
    best = stopping.best_on_dev(rows)
    assert best == {OPTIMAL: rows[0], BOUNDED: rows[3]}
    table = stopping.tuning(rows)
    assert [(row["r"], row["width"]) for row in table] == [(0.0, 4), (0.5, 4), (1.0, 9)]
    test = [{"system": BOUNDED, "BLEU": 28.0, "length ratio": 1.1}]
    (row,) = stopping.final(best, test)
    assert (row["system"], row["dev"], row["test"]) == (BOUNDED, 32.0, 28.0)


def test_who_ends_earlier():
    steps = {
        ("dev", OPTIMAL, 0.0, 2): [5, 5, 9],
        ("dev", TOP, 0.0, 2): [7, 5, 8],
        ("dev", OPTIMAL, 0.0, 3): [1, 1, 1],
    }
    (row,) = stopping.compared(steps, [((OPTIMAL, 0.0), (TOP, 0.0))])
    assert (row["width"], row["earlier"], row["later"]) == (2, 1, 1)
    assert row["mean steps ahead"] == pytest.approx(1 / 3)
