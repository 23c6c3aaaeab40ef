"""The table of machine code is about the step of today, and says of it what the page says."""

from __future__ import annotations

import json

import pytest

from pybeam.backends import poison
from support.paths import ROOT

triton = pytest.importorskip("triton", reason="its kernels are recorded")


@pytest.fixture
def triton_code(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    # who poisons memory launches kernels
    monkeypatch.setattr(poison, "IS_ON", False)
    return pytest.importorskip("benchmarks.gpu.triton_code")


@pytest.fixture(scope="module")
def rows():
    path = ROOT / "benchmarks" / "results" / "triton-code.json"
    return json.loads(path.read_text("utf-8"))["rows"]


def test_it_has_the_kernels_of_all_steps_and_no_others(triton_code, rows, tmp_path):
    model = triton_code.model_of(triton_code.NUM_LAYERS, tmp_path)
    launches = [
        one for name in triton_code.ORDER for one in triton_code.step_launches(model, name, 64)
    ]
    assert {launch.kernel.__name__ for launch in launches} == {row["kernel"] for row in rows}


def test_kernels_of_the_page_keep_no_registers_in_memory(rows):
    own = [row for row in rows if row["case"] == "fixed_beam, 64 sources"]
    assert own and not any(row["spills"] or row["stack bytes"] for row in own)
