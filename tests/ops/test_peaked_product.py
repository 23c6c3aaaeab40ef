"""The Triton kernel of `peaked_product` without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.triton_kernels.peaked_product import peaked_product, tile_of
from support.aot import CAPABILITIES_TO_TEST, Launch, assemble, recorded

# rows, columns and depth: a tile of each kind
SHAPES = [
    (5, 8000, 256),
    (5, 42000, 1024),
    (60, 42000, 1024),
    (100, 8001, 256),
    (320, 42000, 1024),
]


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_peaked_product.py")


def launch_of(num_rows: int, num_columns: int, depth: int, capability: int = 90) -> Launch:
    tile = tile_of(num_rows, num_columns, capability >= 90)
    x, weight = (torch.empty(n, depth, dtype=torch.bfloat16) for n in (num_rows, num_columns))
    [launch] = recorded(lambda: peaked_product(x, weight, weight[:, 0].clone(), tile=tile))
    return launch


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_well(shape, capability):
    """No register is in memory, weights and rows are copied 16 bytes at a time while others are multiplied,
    and rows of logits are written as many."""
    assembly = assemble(launch_of(*shape, capability), capability)
    assert assembly.stack == assembly.local == 0
    [loop] = [loop for loop in assembly.loops if loop.count("HMMA|HGMMA")]
    assert loop.count(r"LDGSTS\.E\S*\.128") == loop.count("LDGSTS") > 0
    assert loop.count(r"\b(LDG|STG)\.") == 0
    assert assembly.count(r"STG\.E\S*\.128") > 0


@pytest.mark.slow
def test_many_rows_take_the_tensor_cores_of_hopper():
    assembly = assemble(launch_of(320, 42000, 1024), 90)
    assert assembly.count("HGMMA") > 0 and assembly.count("HMMA") == 0
