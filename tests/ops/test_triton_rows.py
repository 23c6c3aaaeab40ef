"""The Triton kernels that copy rows, put prompts before trees and walk the tree, without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from support.aot import CAPABILITIES_TO_TEST, assemble, distinct
from support.triton_launches import (
    backtrace_launch,
    gather_launches,
    prompt_launches,
    scatter_launch,
)


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/test_gather_rows.py",
        "tests/ops/test_scatter_rows.py",
        "tests/ops/test_backtrace.py",
        "tests/ops/interpreted/test_prompts_first.py",
        "tests/ops/interpreted/test_rows_in_two_launches.py",
        "-k",
        "not any_moves and not native and not wrong_arguments",
    )


@pytest.mark.slow
def test_memory_bounds_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_memory_bounds.py")


@pytest.mark.slow
@pytest.mark.thinned()
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize(
    "num_moves", [700, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 50, 320, 512))]
)
def test_gather_is_compiled_well(num_moves, capability):
    tensors = [torch.zeros(1000, 512), torch.zeros(1000, 512).bfloat16(), torch.zeros(1000, 3)]
    for launch in distinct(gather_launches(tensors, num_moves)):
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0
        assert assembly.registers <= 168
        is_aligned = launch.arguments[0] is not tensors[2] and launch.arguments[1] is not tensors[2]
        assert (assembly.count(r"LDG\.E\.128") > 0) == is_aligned


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scatter_is_compiled_well(dtype, capability):
    assembly = assemble(scatter_launch(dtype), capability)
    assert assembly.stack == assembly.local == 0
    assert assembly.registers <= 64
    assert assembly.count(r"LDG\.E\.128") > 0
    assert assembly.count(r"STG\.E\.128") > 0


@pytest.mark.thinned()
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("i", range(6))
def test_prompts_are_compiled_well(i, capability):
    launch = prompt_launches()[i]
    assembly = assemble(launch, capability)
    assert assembly.stack == assembly.local == 0
    assert assembly.registers <= 40
    # no number changes threads
    assert assembly.shared == 0


@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_backtrace_is_compiled_well(capability):
    assembly = assemble(backtrace_launch(), capability)
    assert assembly.stack == assembly.local == 0
    assert assembly.registers <= 40
