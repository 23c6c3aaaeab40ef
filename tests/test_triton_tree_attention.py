"""Triton tree attention without a GPU: right in the interpreter, and compiled as it should be."""

from __future__ import annotations

import pytest
import torch

from triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from aot import CAPABILITIES, Assembly, assemble, distinct, recorded
from pybeam.triton_kernels.tree_attention import tree_attention

SIZES = (32, 64, 80, 96, 128, 256)
# (rows per source, sources): a tile of 16, of 32, of 64, and several tiles
BEAMS = [(5, 64), (20, 64), (50, 16), (500, 4)]


def launch_of(rows, sources, size, dtype, words, num_splits=1, heads=2, key_heads=2):
    query = torch.empty(rows * sources, 3, heads, size, dtype=dtype)[:, 0]
    pool = torch.empty(2, 64, key_heads, size, dtype=dtype)
    ints = dict(dtype=torch.int32)
    mask = bit = None
    if words:
        mask = torch.empty(sources, 1024, words, dtype=torch.int64)
        bit = torch.empty(rows * sources, **ints)
    offset, slot = torch.empty(sources + 1, **ints), torch.empty(sources, **ints)
    cell, num_cells = torch.empty(sources, 1024, **ints), torch.empty(sources, **ints)
    (launch,) = recorded(
        lambda: tree_attention(
            query, *pool, offset, slot, cell, num_cells, mask, bit, 0.1, num_splits=num_splits
        )
    )
    return launch


def check(assembly: Assembly, itemsize: int) -> None:
    assert assembly.local == 0
    assert assembly.stack <= 96  # ptxas spills a few registers of the largest tiles
    assert assembly.registers <= 255
    assert assembly.shared <= 99 * 1024  # so that two programs fit a multiprocessor of any GPU
    # keys and values go to shared memory 16 bytes at a time; cell numbers and masks need not
    assert assembly.count(r"LDGSTS\.E.*\.128") > 0
    if itemsize == 2:
        assert assembly.count("HMMA|HGMMA") > 0


def test_in_the_interpreter():
    # the interpreter gets bfloat16, which is dtype1, wrong
    run_in_interpreter(
        "tests/test_tree_attention.py",
        "tests/interpreted/test_tree_attention_splits.py",
        "-k",
        "not dtype1 and not wrong_arguments and not threads",
    )


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_beams_are_compiled_well(dtype, size, capability):
    launches = [launch_of(*beam, size, dtype, words=1) for beam in BEAMS]
    for launch in distinct(launches):
        check(assemble(launch, capability), dtype.itemsize)
