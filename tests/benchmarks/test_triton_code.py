"""The table of machine code is about the step of today, and says of it what the page says."""

from __future__ import annotations

import json

import pytest

from pybeam.backends import poison
from pybeam.inspect.gpu_kernels import role_of
from support import aot
from support.paths import ROOT

triton = pytest.importorskip("triton", reason="its kernels are recorded")

# the last load waits for the third one, which waits for the first
CODE = """
        /*0000*/                   LDG.E R4, [R2.64] ;
        /*0010*/                   IMAD.WIDE R6, R4, 0x4, R8 ;
        /*0020*/              @P0  LDG.E.64 R10, [R6.64] ;
        /*0030*/                   STG.E [R6.64], R11 ;
        /*0040*/                   LDG.E R4, [R12.64] ;
        /*0050*/                   LDG.E R5, [R11] ;
        /*0060*/                   FADD R5, R4, R4 ;
"""


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


def test_it_has_the_machine_codes_of_all_steps_and_no_others(triton_code, rows, tmp_path):
    model = triton_code.model_of(triton_code.NUM_LAYERS, tmp_path)
    today = [
        row | triton_code.made_of(launch)
        for row, launch in triton_code.variants(model, triton_code.ORDER)
    ]
    columns = today[0].keys()
    assert [{name: row[name] for name in columns} for row in rows] == today


def test_kernels_of_the_page_keep_no_registers_in_memory(rows):
    own = [row for row in rows if row["case"] == "fixed_beam, 64 sources"]
    assert own and not any(row["spills"] or row["stack bytes"] for row in own)


def test_few_loads_of_the_books_wait_for_one_another(rows):
    """A kernel that waits for memory more often than its budget on a GPU allows is seen here."""
    roles = pytest.importorskip("benchmarks.gpu.roles")
    books = [row for row in rows if role_of(row["kernel"]) in ("books", "norm")]
    own = [row for row in books if row["case"].startswith("fixed_beam")]
    assert {row["kernel"] for row in own} <= roles.BUDGETS_US.keys() and len(own) >= 6
    for row in own:
        us = roles.START_US + roles.LOAD_US * row["loads in a chain"]
        assert us <= roles.BUDGETS_US[row["kernel"]], row


def test_loads_in_a_chain_are_counted():
    assert aot.Assembly(0, 0, 0, 0, CODE).chained_loads == 3
