"""The end-to-end benchmarks run, on next to nothing, and keep and draw what they measure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pybeam
from support.search_models import random_model

for module in ("tabulate", "sacrebleu", "sentencepiece"):
    pytest.importorskip(module)

from benchmarks import latency  # noqa: E402
from benchmarks.journal import Journal  # noqa: E402
from benchmarks.step_time import StepTime  # noqa: E402
from support.tiny_corpus import write_corpus  # noqa: E402

ROOT = Path(__file__).parents[2]
METHODS = {
    "GREEDY",
    "FIXED",
    "FIXED-OURS",
    "FIXED-STREAM",
    "VAR-BATCH",
    "VAR-STREAM",
    "VAR-STR-FIFO",
    "VAR-FIFO, epsilon = 1",
}


def dry_run(folder: Path, *arguments: str) -> dict:
    write_corpus(folder, "dev")
    command = [sys.executable, "-m", "benchmarks", "e2e", "--dry-run", "--data", str(folder)]
    run = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, "OUT": str(folder)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert (folder / "e2e-cpu.log").exists()
    return json.loads((folder / "e2e-cpu.json").read_text())


@pytest.mark.slow
def test_dry_run(tmp_path):
    pytest.importorskip("transformers")
    data = dry_run(tmp_path)
    assert data["is_complete"]
    # not every version of transformers can compile this model's forward pass
    failed = [row for row in data["rows"] if "error" in row and "compiled" not in row["system"]]
    assert not failed
    systems: dict[str, set[str]] = {}
    for row in data["rows"]:
        systems.setdefault(row["case"], set()).add(row["system"])
    generate = {"transformers.generate"}
    peers = generate | {
        "transformers.generate, greedy",
        "compiled transformers.generate, greedy",
        "CTranslate2 beam_size=2",
    }
    assert systems["example-agreement"] == {"Fifo", "Streaming", "two decoders"}
    for model in ("example", "widened"):
        assert systems[f"{model}-2"] == METHODS | peers
        assert systems[f"{model}-12"] == METHODS, "generate is too slow at wide beams on a CPU"
        assert systems[f"{model}-latency"] == {
            "Batch(2)",
            "Streaming(2)",
            "Streaming(2, max_wait=8)",
            "Fifo(2)",
        }
        assert systems[f"{model}-steps"] == {"pybeam"} | generate
        assert systems[f"{model}-memory"] == {"VAR-STREAM"} | generate, "each is a process"
    for row in data["rows"]:
        if row["case"] in ("example-2", "widened-2") and "error" not in row:
            assert row["repeats"] == 2 and row["lines/s"] > 0 and 0 <= row["BLEU"] <= 100
        if row["case"].endswith("-memory"):
            assert row["peak_gb"] > 0
        if row["system"] in METHODS or (
            row["case"].endswith("-steps") and row["system"] == "pybeam"
        ):
            # a step's time is the slope between two short runs, whose sign noise decides
            assert row["case"].endswith("-memory") or row["times forecast"] != 0
        if row["case"] == "example-agreement":
            assert row["same, replayed"] == row["lines"]
    bleu = {(r["case"], r["system"]): r["BLEU"] for r in data["rows"] if "BLEU" in r}
    swept = [row for row in data["rows"] if row["case"] == "example-12-sweep"]
    assert {row["same outputs"] for row in swept if row["system"].startswith("epsilon")} == {1}
    assert len({bleu["example-2", name] for name in METHODS if name.startswith("VAR")}) == 1


@pytest.mark.slow
def test_only_some_rows(tmp_path):
    first = dry_run(tmp_path, "--only", "example-2/FIXED-O", "example-2/GREEDY")
    assert {row["system"] for row in first["rows"]} == {"GREEDY", "FIXED-OURS"}
    second = dry_run(tmp_path, "--only", "example-2/GREEDY", "--repeats", "1")
    rows = {row["system"]: row for row in second["rows"]}
    assert rows["FIXED-OURS"] == next(r for r in first["rows"] if r["system"] == "FIXED-OURS")
    assert (rows["GREEDY"]["run"], rows["GREEDY"]["repeats"]) == ("2", 1)
    assert second["runs"].keys() == {"1", "2"}


def test_a_journal_keeps_what_it_has(tmp_path):
    def interrupted() -> dict:
        raise KeyboardInterrupt

    journal = Journal(tmp_path, "x", ("op",), minutes=1)
    journal.attempt({"op": "first"}, lambda: {"us": 1.0})
    journal.attempt({"op": "second"}, lambda: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        journal.attempt({"op": "third"}, interrupted)
    data = json.loads((tmp_path / "x.json").read_text())
    assert not data["is_complete"]
    assert data["rows"] == [
        {"op": "first", "us": 1.0, "run": "1"},
        {"op": "second", "error": "ZeroDivisionError: division by zero", "run": "1"},
    ]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["x.json", "x.log"]


def test_a_journal_stops_in_time(tmp_path):
    journal = Journal(tmp_path, "x", ("op",), minutes=-1)
    assert journal.attempt({"op": "late"}, lambda: pytest.fail("there was no time left")) is None
    journal.finish()
    assert not json.loads((tmp_path / "x.json").read_text())["is_complete"]


def test_arrivals_are_a_poisson_process():
    due = latency.arrivals(rate=50.0, number=20_000, seed=3)
    gaps = due[1:] - due[:-1]
    assert gaps.min() > 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)
    assert (due == latency.arrivals(50.0, 20_000, 3)).all()
    # another load is the same process at another speed
    assert latency.arrivals(100.0, 20_000, 3) == pytest.approx(due / 2)
    assert not (due == latency.arrivals(50.0, 20_000, 4)).all()


def test_percentiles_are_in_milliseconds():
    seconds = latency.numpy.arange(101) / 100  # 0, 0.01, ... 1
    assert latency.percentiles(seconds) == pytest.approx(
        {"p50_ms": 500, "p95_ms": 950, "p99_ms": 990}
    )


def test_latency_runs_from_when_a_request_is_due():
    """A server that begins late pays for the wait, and every request is answered."""
    decoder = pybeam.Decoder(random_model(1), pybeam.greedy(max_length=4), pybeam.Fifo(2))
    found = latency.latencies(
        decoder, [[1]] * 5, latency.numpy.array([-9.0, -9.0, 0.0, 0.01, 0.02])
    )
    assert not latency.numpy.isnan(found).any()
    assert (found[:2] > 9).all()
    assert (found > 0).all()


def test_an_error_of_the_server_does_not_wait_for_the_arrivals():
    def broken(*_):
        raise RuntimeError("no power")

    model = pybeam.models.FunctionModel(broken, 5, 0, 1)
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=4), pybeam.Fifo(2))
    with pytest.raises(RuntimeError, match="no power"):
        latency.latencies(decoder, [[1]] * 2, latency.numpy.array([0.0, 1e6]))


def test_step_time_is_what_lengths_differ_by(monkeypatch):
    """A clock that a search of T tokens moves by T seconds and a half for every token after 10.

    Two threads are busy for as long.
    """
    now = 0.0

    def until(length):
        def translate(sources):
            nonlocal now
            now += length + max(0, length - 10) / 2

        return translate

    monkeypatch.setattr("benchmarks.step_time.time.perf_counter", lambda: now)
    monkeypatch.setattr("benchmarks.step_time.time.process_time", lambda: 2 * now)
    row = StepTime(until, lambda: [[1]], 5, (6, 10, 14))()
    assert row["length"] == [8, 12]
    assert row["step_ms"] == pytest.approx([1000, 1500])
    assert (row["cpu ms at 8"], row["cpu ms at 12"]) == pytest.approx((2000, 3000))


ROWS = [
    {"case": "example-5", "system": "GREEDY", "BLEU": 38.0, "lines/s": 200.0},
    {"case": "example-5", "system": "VAR-STREAM", "BLEU": 40.0, "lines/s": 120.0},
    {"case": "example-5", "system": "FIXED", "error": "out of memory"},
    {
        "case": "example-steps",
        "system": "pybeam",
        "n": 2,
        "width": 5,
        "length": [8, 16],
        "step_ms": [1.0, 1.5],
    },
    {
        "case": "example-latency",
        "system": "Fifo(4)",
        "load": 0.5,
        "p50_ms": 9.0,
        "p95_ms": 20.0,
        "p99_ms": 30.0,
    },
]


@pytest.mark.slow
def test_plots(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks import plots

    path = tmp_path / "e2e-cpu.json"
    path.write_text(json.dumps({"rows": ROWS}))
    drawn = plots.draw(path)
    assert [p.name for p in drawn] == [
        f"e2e-cpu-{name}.svg" for name in ("throughput", "steps", "latency")
    ]
    throughput, steps, latencies = (p.read_text() for p in drawn)
    assert "VAR-STREAM" in throughput and "GREEDY" in throughput and "FIXED" not in throughput
    assert "example, k = 5, n = 2" in steps
    assert "p99" in latencies and "Fifo(4)" in latencies
    first = [p.read_bytes() for p in drawn]
    assert [p.read_bytes() for p in plots.draw(path)] == first, "the same numbers, the same file"


def test_plots_of_parts_that_were_not_measured(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks import plots

    path = tmp_path / "e2e-gpu.json"
    path.write_text(json.dumps({"rows": ROWS[3:4]}))
    assert [p.name for p in plots.draw(path)] == ["e2e-gpu-steps.svg"]
