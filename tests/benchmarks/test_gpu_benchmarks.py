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

OPS = {
    "step",
    *(f"step, {phase}" for phase in ("plan", "read", "model", "select", "commit", "report")),
    "select",
    "tree_attention, tree",
    "tree_attention, cross",
    "add_norm",
    "gather_rows",
    "scatter_rows",
    "backtrace",
}


@pytest.mark.slow
@pytest.mark.parametrize("interprets", [False, True], ids=["native", "triton"])
def test_dry_run(tmp_path, interprets):
    """Every group runs, and what it times is right."""
    for module in ("pybeam._C", "tabulate", *["triton"] * interprets):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not there")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--minutes", "60"],
        cwd=ROOT,
        env={**os.environ, "OUT": str(tmp_path), "TRITON_INTERPRET": str(int(interprets))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    data = json.loads((tmp_path / "gpu-bench.json").read_text())
    assert data["is_complete"]
    assert not [row for row in data["rows"] if "error" in row]
    ours = [row for row in data["rows"] if row["backend"] == ("triton" if interprets else "native")]
    # norms are part of the program of all layers on a CPU
    assert {row["op"] for row in ours} == OPS - (set() if interprets else {"add_norm"})
    assert {row["op"] for row in data["rows"]} == OPS
    assert all(row["times forecast"] > 0 for row in ours)
    assert "times forecast" in (tmp_path / "gpu-bench.log").read_text()
    assert "ended early" not in run.stdout


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return pytest.importorskip("benchmarks.gpu.__main__")


def test_a_group_that_fails_leaves_the_others(gpu, tmp_path, capsys):
    measured = []

    def group(name):
        def measure() -> None:
            measured.append(name)
            if name in ("machine", "select"):
                raise torch.OutOfMemoryError("CUDA out of memory")

        return name, measure

    journal = gpu.Journal(tmp_path, "gpu-bench", gpu.IDENTITY)
    gpu._measure(map(group, ("machine", "select", "rows")), journal, only=None)
    assert measured == ["machine", "select", "rows"]
    assert "select ended early: OutOfMemoryError" in capsys.readouterr().out
    measured.clear()
    gpu._measure(map(group, ("machine", "select", "rows")), journal, only="rows")
    assert measured == ["machine", "rows"]


def test_the_most_valuable_rows_come_first(gpu, tmp_path):
    journal = gpu.Journal(tmp_path, "gpu-bench", gpu.IDENTITY)
    timer = gpu.Timer(torch.device("cpu"))
    names = [name for name, _ in gpu._groups(timer, journal, tiny=True)]
    assert names[:4] == ["machine", "step", "select", "tree_attention"]
    assert set(names) == {"machine", *gpu.GROUPS}


def test_a_wrong_result_has_no_time(gpu, tmp_path, monkeypatch):
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    select = native.select

    def wrong(*arguments):
        survivors = select(*arguments)
        return survivors._replace(token=survivors.token + 1)

    monkeypatch.setattr(native, "select", wrong)
    journal = gpu.Journal(tmp_path, "gpu-bench", gpu.IDENTITY)
    timer = gpu.Timer(torch.device("cpu"))
    gpu.bench_select.measure_first(timer, journal, ["native"], tiny=True)
    rows = [row for row in journal.rows if row["backend"] == "native"]
    assert len(rows) == 3
    assert all("us" not in row and "WrongResult" in row["error"] for row in rows)


def test_forecast_of_a_row(gpu):
    """Bytes at the published rate are the limit; a forecast has slower reads, and launches."""
    expected = pytest.importorskip("benchmarks.gpu.expected")
    one, two = (expected.of_bytes(3.35e6, kernels) for kernels in (1, 2))
    assert one.limit == two.limit == pytest.approx(1)
    assert one.least == pytest.approx(1 / 0.9 + 1.3) and one.most == pytest.approx(1 / 0.9 + 2.2)
    assert two.least - one.least == pytest.approx(1.3)
    columns = one.columns(us=2 * (one.least + one.most))
    assert columns["times forecast"] == 4 and columns["of limit"] == pytest.approx(0.0867, 1e-2)


def test_a_step_is_at_least_its_phases(gpu):
    expected = pytest.importorskip("benchmarks.gpu.expected")
    network = expected.Network(3, 256, 1024, 8000)
    sizes = network, 64, 5, "bfloat16"
    phases = [
        expected.of_phase(*sizes, phase)
        for phase in ("plan", "read", "model", "process", "select", "commit", "report")
    ]
    step = expected.of_step(*sizes)
    assert sum(one.least for one in phases) == pytest.approx(step.least, rel=0.02)
    assert (
        expected.kernels_of(3)["sum"]
        < expected.kernels_of(4)["sum"]
        < expected.kernels_of(6)["sum"]
    )
