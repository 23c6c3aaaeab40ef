"""The Triton kernels that copy rows and walk the tree, without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.triton_kernels.backtrace import backtrace
from pybeam.triton_kernels.rows import gather_rows, scatter_rows
from support.aot import CAPABILITIES_TO_TEST, assemble, distinct, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/test_gather_rows.py",
        "tests/ops/test_scatter_rows.py",
        "tests/ops/test_backtrace.py",
        "tests/ops/interpreted/test_rows_in_two_launches.py",
        "-k",
        "not any_moves and not native and not wrong_arguments",
    )


@pytest.mark.slow
def test_memory_bounds_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_memory_bounds.py")


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


@pytest.mark.thinned()
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize(
    "num_moves", [50, 700, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 320, 512))]
)
def test_gather_is_compiled_well(num_moves, capability):
    tensors = [torch.zeros(1000, 512), torch.zeros(1000, 512).bfloat16(), torch.zeros(1000, 3)]
    launches = recorded(lambda: gather_rows(tensors, ints(num_moves), ints(num_moves)))
    for launch in distinct(launches):
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0
        assert assembly.registers <= 168
        is_aligned = launch.arguments[0] is not tensors[2] and launch.arguments[1] is not tensors[2]
        assert (assembly.count(r"LDG\.E\.128") > 0) == is_aligned


@pytest.mark.thinned()
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scatter_is_compiled_well(dtype, capability):
    pool = torch.zeros(2, 2, 64, 8, 64, dtype=dtype)
    rows = torch.zeros(50, 3, 8, 64, dtype=dtype)[:, 1]
    (launch,) = recorded(lambda: scatter_rows(pool[1, 0], ints(50), rows))
    assembly = assemble(launch, capability)
    assert assembly.stack == assembly.local == 0
    assert assembly.registers <= 64
    assert assembly.count(r"LDG\.E\.128") > 0
    assert assembly.count(r"STG\.E\.128") > 0


@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_backtrace_is_compiled_well(capability):
    (launch,) = recorded(lambda: backtrace(ints(4, 90), ints(4, 90), ints(7), ints(7), 50))
    assembly = assemble(launch, capability)
    assert assembly.stack == assembly.local == 0
    assert assembly.registers <= 40
