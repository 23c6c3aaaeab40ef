"""The GPU's benchmarks run, on tiny shapes, where there is no GPU, and keep what they measure."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from support.paths import ROOT


@pytest.mark.slow
def test_dry_run(tmp_path):
    for module in ("pybeam._C", "tabulate"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not there")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--dry-run"],
        cwd=ROOT,
        env={**os.environ, "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    data = json.loads((tmp_path / "gpu-bench.json").read_text())
    assert data["is_complete"]
    assert not [row for row in data["rows"] if "error" in row]
    measured = {row["op"] for row in data["rows"]}
    assert measured == {
        "select",
        "tree_attention, tree",
        "tree_attention, cross",
        "gather_rows",
        "scatter_rows",
        "backtrace",
    }
    assert "select" in (tmp_path / "gpu-bench.log").read_text()


def test_a_group_that_fails_leaves_the_others(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(ROOT)
    main = pytest.importorskip("benchmarks.gpu.__main__")
    measured = []
    for module, name in (
        (main.machine, "measure"),
        (main.bench_select, "measure"),
        (main.bench_select, "measure_compiled"),
        (main.bench_tree_attention, "measure"),
        (main.bench_rows, "measure"),
    ):

        def record(*_, name=f"{module.__name__}.{name}"):
            measured.append(name.rpartition("gpu.")[2])
            if name.endswith(("select.measure", "machine.measure")):
                raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(module, name, record)
    journal = main.Journal(tmp_path, "gpu-bench", main.IDENTITY)
    main._measure(None, journal, tiny=True, only=None)
    assert measured == [
        "machine.measure",
        "bench_select.measure",
        "bench_select.measure_compiled",
        "bench_tree_attention.measure",
        "bench_rows.measure",
    ]
    assert "select ended early: OutOfMemoryError" in capsys.readouterr().out


@pytest.fixture
def choice(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return pytest.importorskip("benchmarks.gpu.choice")


def rows_of(choice, winner) -> list[dict]:
    """Times of both backends at every shape; `winner(case)` names the faster."""
    return [
        {**case.row, "backend": name, "us": 1.0 if name == winner(case) else 2.0}
        for case in choice.bench_select.cases(tiny=False)
        for name in choice.CANDIDATES
    ]


def test_one_winner_needs_one_rule(choice, tmp_path):
    rows = rows_of(choice, lambda case: "triton")
    assert choice.select_rules(rows) == [{"backend": "triton"}]
    assert choice.select_rules([]) == []  # which is Triton
    text = choice.write(rows, tmp_path / "gpu_choice.py").read_text()
    table: dict = {}
    exec(text, table)
    assert table["SELECT"] == [{"backend": "triton"}]


def test_rules_follow_the_shapes(choice, monkeypatch):
    gpu_auto = pytest.importorskip("pybeam.backends.gpu_auto", exc_type=ImportError)
    rows = rows_of(choice, lambda case: "native" if case.num_rows > 50 else "triton")
    monkeypatch.setattr("pybeam.backends.gpu_choice.SELECT", choice.select_rules(rows))
    gpu_auto.choose.cache_clear()
    chosen = {n: gpu_auto.choose(n, 40000, 2) for n in (1, 7, 50, 51, 320, 900, 10**6)}
    assert chosen == {
        **dict.fromkeys((1, 7, 50), "triton"),
        **dict.fromkeys((51, 320, 900, 10**6), "native"),
    }
    gpu_auto.choose.cache_clear()
