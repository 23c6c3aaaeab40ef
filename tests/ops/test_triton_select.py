"""Triton's `select` without a GPU: run in the interpreter, and compiled ahead of time."""

from __future__ import annotations

import itertools

import pytest
import torch

from pybeam.contracts import SelectOptions
from support import aot
from support.select_code import BUDGET, reading_loop, select_launch
from support.triton_process import run_in_interpreter

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.slow
def test_awkward_logits_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/test_select.py",
        "-k",
        "constant_rows or equal_scores or minus or bad_logit or nan_among or huge or peaked or "
        "exact_ties or float64 or (vocabulary_sizes and not 8001)",
    )


@pytest.mark.slow
def test_beams_and_options_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/test_select.py",
        "tests/ops/test_select_eos.py",
        "-k",
        "several_eos or ban_eos or by_hand or held_entry or test_empty or padding or log_probs_stay or "
        "(test_widths and (greedy or fifty and 30)) or "
        "(test_options and (1.0 or best_finished-forced))",
    )


@pytest.mark.slow
def test_slices_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/interpreted/test_keys.py", "tests/ops/interpreted/test_select_slices.py"
    )


def test_no_shape_and_no_option_adds_a_variant():
    pytest.importorskip("triton")
    from pybeam.triton_kernels.select import select

    shapes = itertools.product(DTYPES, (0, 1, 16, 48, 1024), (1, 16, 42000, 256000), (1, 16, 17))
    launches = []
    for dtype, num_rows, vocab_size, num_beams in shapes:
        logits = torch.zeros(1, vocab_size, dtype=dtype).expand(num_rows, vocab_size)
        entry, beam = torch.zeros(num_rows), torch.zeros(num_beams + 1, dtype=torch.int32)[1:]
        offset = torch.zeros(num_beams + 1, dtype=torch.int32)
        margin = torch.zeros(num_beams + 1)[1:]
        given = (entry > 0, beam, margin, margin, margin, beam, beam > 0)
        for more in (given, ()):
            options = SelectOptions(num_beams, (2,), 2, True, *more)
            arguments = (logits, entry, offset, beam, options)
            launches += aot.recorded(lambda arguments=arguments: select(*arguments))
    assert len(aot.distinct(launches)) == len(DTYPES)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("capability", aot.CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled(dtype, capability):
    pytest.importorskip("triton")
    assembly = aot.assemble(select_launch(dtype), capability)
    assert assembly.stack == assembly.local == 0
    assert assembly.registers <= 128
    loop = reading_loop(assembly)
    # every load of the loop that reads the row is of 16 bytes, and nothing in it waits for others
    assert loop.count(r"\bLDG\.") == loop.count(r"\bLDG\.E\.\S*128") == 4
    assert loop.count(r"\b(SHFL|BAR|LDS|STS|ATOM|LDL|STL)") == 0
    assert len(loop.instructions) <= BUDGET[dtype] * 4 * (16 // dtype.itemsize)
