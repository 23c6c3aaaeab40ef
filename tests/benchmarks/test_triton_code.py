"""The table of machine code is about the step of today, and says of it what the page says."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import pytest

import pybeam
from benchmarks.gpu import roles
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


@pytest.fixture(scope="module")
def triton_code():
    with pytest.MonkeyPatch.context() as monkeypatch:
        # who poisons memory launches kernels
        monkeypatch.setattr(poison, "IS_ON", False)
        yield pytest.importorskip("benchmarks.gpu.triton_code")


@pytest.fixture(scope="module")
def model(triton_code, tmp_path_factory):
    return triton_code.model_of(triton_code.NUM_LAYERS, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def variants(triton_code, model):
    """The machine codes of steps of these algorithms, as they are today."""
    return partial(triton_code.variants, model)


@pytest.fixture(scope="module")
def rows():
    path = ROOT / "benchmarks" / "results" / "triton-code.json"
    return json.loads(path.read_text("utf-8"))["rows"]


@pytest.mark.slow
def test_it_has_the_machine_codes_of_all_steps_and_no_others(
    triton_code, model, variants, rows, tmp_path
):
    found = variants(triton_code.ORDER, triton_code.other_steps(model, tmp_path))
    today = [row | triton_code.made_of(launch) for row, launch in found]
    columns = today[0].keys()
    assert [{name: row[name] for name in columns} for row in rows] == today


@pytest.fixture(
    scope="module", params=["recorded", pytest.param("compiled", marks=pytest.mark.slow)]
)
def step_rows(request, triton_code, variants, rows):
    """The kernels of steps of `fixed_beam`, as the table has them, and as the code of today is compiled."""
    if request.param == "recorded":
        return [row for row in rows if row["case"].startswith("fixed_beam")]
    found = variants(["fixed_beam"])
    return [row | triton_code.measured(launch) for row, launch in found]


def test_kernels_of_the_page_keep_no_registers_in_memory(step_rows):
    assert step_rows and not any(row["spills"] or row["stack bytes"] for row in step_rows)


def test_few_other_kernels_keep_registers_in_memory(rows):
    """Those that do have a few there, and change logits or draw from them."""
    found = {row["kernel"]: row["spills"] for row in rows if row["spills"] or row["stack bytes"]}
    assert found.keys() == {"settle_kernel", "edit_kernel", "logits_kernel"}
    assert max(found.values()) < 16


def test_few_loads_of_the_books_wait_for_one_another(step_rows):
    """A kernel that waits for memory more often than its budget on a GPU allows is seen here."""
    own = [row for row in step_rows if role_of(row["kernel"]) == "books"]
    assert {row["kernel"] for row in own} <= roles.BUDGETS_US.keys() and len(own) >= 2
    for row in own:
        us = roles.START_US + roles.LOAD_US * row["loads in a chain"]
        assert us <= roles.BUDGETS_US[row["kernel"]], row


def test_kernels_that_compute_have_no_more_code_than_their_budgets(step_rows):
    own = [row for row in step_rows if row["kernel"] in roles.CODE_BUDGETS]
    assert {row["kernel"] for row in own} == roles.CODE_BUDGETS.keys()
    above = [
        (row["kernel"], row["variant"], column, row[column], most)
        for row in own
        for column, most in roles.CODE_BUDGETS[row["kernel"]].items()
        if row[column] > most
    ]
    assert not above


# of beams of 2 to 50 rows, one of them and 64
MOST_VARIANTS = {
    "select_kernel": 1,
    "embed_norm_kernel": 1,
    "add_norm_kernel": 1,
    "read_kernel": 3,
    "commit_kernel": 4,
    "tree_attention_kernel": 11,
    "product_kernel": 12,
}


@pytest.mark.parametrize(
    "widths",
    [
        pytest.param((2, 5, 9, 17, 33, 50), id="some"),
        pytest.param(range(2, 51), id="all", marks=pytest.mark.slow),
    ],
)
def test_widths_share_variants(triton_code, model, widths):
    """A process that decodes with another width than before has few kernels to compile."""
    launches = [
        launch
        for width in widths
        for num_sources in (1, 64)
        for launch in triton_code.launches_of(
            model, pybeam.fixed_beam(width, max_length=60), num_sources
        )
    ]
    counts = Counter(launch.kernel.__name__ for launch in aot.distinct(launches))
    assert counts.keys() == MOST_VARIANTS.keys()
    assert not counts - Counter(MOST_VARIANTS)


def test_the_page_has_the_kernels_of_a_step(triton_code, model):
    page = " ".join((ROOT / "docs" / "howto" / "gpu.md").read_text("utf-8").split())
    found = []
    for num_sources in (1, 64):
        own = aot.distinct(triton_code.step_launches(model, "fixed_beam", num_sources))
        found += [len(own), len({launch.kernel for launch in own})]
    said = "a step of one beam has {} variants of {} kernels, a step of 64 beams {} variants of {}."
    assert said.format(*found) in page


def test_loads_in_a_chain_are_counted():
    assert aot.Assembly(0, 0, 0, 0, CODE).chained_loads == 3
