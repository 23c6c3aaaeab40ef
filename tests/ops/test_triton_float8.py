"""The rounding of rows to E4M3 without a GPU: run in the interpreter, and compiled ahead of time."""

from __future__ import annotations

import pytest
import torch

from support import aot
from support.triton_process import run_in_interpreter


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_float8_rows.py")


@pytest.mark.slow
@pytest.mark.parametrize("num_columns", [256, 1024, 9000])
def test_compiled(num_columns):
    pytest.importorskip("triton")
    from pybeam.triton_kernels.float8 import rounded_rows

    x = torch.zeros(5, num_columns, dtype=torch.bfloat16)
    (launch,) = aot.recorded(lambda: rounded_rows(x))
    assembly = aot.assemble(launch, 90)
    # an exact division calls a function for rare numbers, which saves a few registers
    assert assembly.local == 0 and assembly.stack <= 64
    assert assembly.registers <= 64
    # numbers next to zero are not made zero
    assert ".ftz" not in aot.ptx(launch, 90)
