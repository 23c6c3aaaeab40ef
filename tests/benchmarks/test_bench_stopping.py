"""The benchmark of stop rules runs on next to nothing, keeps what it has, and picks what is best on dev."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

for module in ("tabulate", "sacrebleu", "sentencepiece", "matplotlib"):
    pytest.importorskip(module)

from benchmarks import bench_stopping  # noqa: E402
from benchmarks.bench_stopping import BOUNDED, FIXED, NORM, OPTIMAL, REWARD, TOP  # noqa: E402
from support import small_corpus  # noqa: E402


def measure(folder: Path, monkeypatch, *more: str) -> dict:
    small_corpus.write(folder, "dev", "test")
    options = "--lines 3 --test-lines 2 --widths 1 2 --rewards 0.5 --threads 2".split()
    places = ["--data", str(folder), "--output", str(folder)]
    monkeypatch.setattr(sys, "argv", ["bench_stopping", *options, *places, *more])
    bench_stopping.main()
    return json.loads((folder / "stopping-cpu.json").read_text())


def test_every_decoder_at_every_width(tmp_path, monkeypatch):
    data = measure(tmp_path, monkeypatch)
    assert data["is_complete"]
    rows = {(r["split"], r["decoder"], r["width"]): r for r in data["rows"] if "BLEU" in r}
    decoders = {TOP, NORM, REWARD, FIXED, OPTIMAL, BOUNDED}
    assert {place[1:] for place in rows if place[0] == "dev"} == {
        (name, width) for name in decoders for width in (1, 2)
    }
    assert {place[1] for place in rows if place[0] == "test"} == decoders
    for width in (1, 2):
        optimal, top = (rows["dev", name, width] for name in (OPTIMAL, TOP))
        assert optimal["log prob"] >= top["log prob"]
        assert optimal["steps"] <= top["steps"]
        assert rows["dev", BOUNDED, width]["log prob"] <= optimal["log prob"] + 1e-6
    beside = [row for row in data["rows"] if "beside" in row]
    assert {(row["decoder"], row["beside"]) for row in beside} == {
        (OPTIMAL, TOP),
        (OPTIMAL, NORM),
        (BOUNDED, NORM),
    }
    assert all(row["later"] == 0 for row in beside if row["beside"] == TOP)
    (run,) = data["runs"].values()
    assert run["length_ratio"] > 0 and run["commit"] and run["torch"]
    for name in ("quality", "bleu", "reward"):
        assert (tmp_path / f"stopping-cpu-{name}.svg").exists()


def test_an_interrupted_run_keeps_its_rows(tmp_path, monkeypatch):
    run, calls = bench_stopping.Bench.run, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        run(*arguments)

    monkeypatch.setattr(bench_stopping.Bench, "run", interrupted)
    data = measure(tmp_path, monkeypatch)
    assert not data["is_complete"]
    assert {row["decoder"] for row in data["rows"]} == {TOP, NORM, REWARD}
    monkeypatch.undo()
    resumed = measure(tmp_path, monkeypatch, "--resume")
    assert resumed["is_complete"]
    assert [row["run"] for row in resumed["rows"][:4]] == ["1", "1", "1", "2"]
    assert {row["decoder"] for row in resumed["rows"]} == {
        TOP,
        NORM,
        REWARD,
        FIXED,
        OPTIMAL,
        BOUNDED,
    }


def test_what_is_best_on_dev():
    rows = [
        {"decoder": OPTIMAL, "r": 0.0, "width": 4, "BLEU": 30.0, "length ratio": 0.9},
        {"decoder": OPTIMAL, "r": 0.0, "width": 9, "BLEU": 30.0, "length ratio": 0.8},
        {"decoder": BOUNDED, "r": 0.5, "width": 4, "BLEU": 31.0, "length ratio": 0.9},
        {"decoder": BOUNDED, "r": 1.0, "width": 9, "BLEU": 32.0, "length ratio": 1.0},
        {"decoder": BOUNDED, "r": 1.0, "width": 4, "BLEU": 29.0, "length ratio": 1.0},
    ]
    best = bench_stopping.best_on_dev(rows)
    assert best == {OPTIMAL: rows[0], BOUNDED: rows[3]}
    table = bench_stopping.tuning(rows)
    assert [(row["r"], row["width"]) for row in table] == [(0.0, 4), (0.5, 4), (1.0, 9)]
    test = [{"decoder": BOUNDED, "BLEU": 28.0, "length ratio": 1.1}]
    (row,) = bench_stopping.final(best, test)
    assert (row["decoder"], row["dev"], row["test"]) == (BOUNDED, 32.0, 28.0)


def test_who_ends_earlier():
    steps = {(OPTIMAL, 0.0, 2): [5, 5, 9], (TOP, 0.0, 2): [7, 5, 8], (OPTIMAL, 0.0, 3): [1, 1, 1]}
    (row,) = bench_stopping.compared(steps, [((OPTIMAL, 0.0), (TOP, 0.0))])
    assert (row["width"], row["earlier"], row["later"]) == (2, 1, 1)
    assert row["mean steps ahead"] == pytest.approx(1 / 3)
