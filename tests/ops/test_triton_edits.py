"""Kernels that change logits between the model and `select`, in the interpreter, and compiled."""

from __future__ import annotations

import pytest
import torch

from support import aot
from support.triton_launches import ints
from support.triton_process import run_in_interpreter


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/interpreted/test_edits.py", "tests/ops/interpreted/test_log_softmax.py"
    )


def edit_launches(num_tokens: int) -> list[aot.Launch]:
    from pybeam.triton_kernels.logits.edits import EDIT_WORDS, edit_logits

    lines, history = torch.zeros(3, EDIT_WORDS, dtype=torch.int64), ints(5, num_tokens)
    given = lines, history, ints(4, 0), *(ints(size) for size in (5, 5, 4, 4)), (2,)
    return aot.recorded(lambda: edit_logits(torch.zeros(5, 90), *given))


def log_softmax_launches() -> list[aot.Launch]:
    from pybeam.triton_kernels.logits.log_softmax import log_softmax

    return aot.recorded(lambda: log_softmax(torch.zeros(5, 90, dtype=torch.bfloat16)))


@pytest.mark.slow
@pytest.mark.parametrize("capability", aot.CAPABILITIES)
@pytest.mark.parametrize("num_tokens", [60, 1000, 9000])
def test_edits_compiled(num_tokens, capability):
    pytest.importorskip("triton")
    (launch,) = edit_launches(num_tokens)
    assembly = aot.assemble(launch, capability)
    # an exact division calls a function for rare numbers, which saves a few registers
    assert assembly.local == 0 and assembly.stack <= 64
    assert assembly.registers <= 128


@pytest.mark.slow
@pytest.mark.parametrize("capability", aot.CAPABILITIES)
def test_log_softmax_compiled(capability):
    pytest.importorskip("triton")
    (launch,) = log_softmax_launches()
    assembly = aot.assemble(launch, capability)
    assert assembly.stack == assembly.local == 0
    assert assembly.registers <= 64


def test_no_list_and_no_shape_adds_a_variant():
    pytest.importorskip("triton")
    launches = [launch for num_tokens in (3, 16, 48, 256) for launch in edit_launches(num_tokens)]
    assert len(aot.distinct(launches)) == 1
