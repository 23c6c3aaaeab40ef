"""The Triton kernel of `decoder_layers` without a GPU."""

from __future__ import annotations

import re

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.backends.torch_layers import Activation
from pybeam.contracts import Cells
from pybeam.triton_kernels.persistent import (
    LayersShape,
    Programs,
    RowsSee,
    decoder_layers,
    exchange_for,
    programs_of,
    takes_layers,
)
from support.aot import Launch, assemble, compile_for, recorded

PROGRAMS = Programs(132, 8)
LARGE = LayersShape(1024, 4096, 16, Activation.RELU, 1e-5, 0.125, is_pre_norm=True)
SMALL = LayersShape(256, 1024, 4, Activation.RELU, 1e-5, 0.125, is_pre_norm=True)
# a load that waits for a number of another program, one of 16 bytes of weights or of cells, a product
WAITS, LOADS, MULTIPLIES = r"LDG.*STRONG\.SYS", r"LDG\.E\.128 ", "HMMA"
# which waits are those of products, but for the one behind attention to hypotheses, which waits itself
# behind its last product
PRODUCTS = (0, 3, 5, 6, 7)


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_decoder_layers.py")


def launch_of(shape: LayersShape, num_rows: int, programs: Programs = PROGRAMS) -> Launch:
    def ints(*size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32)

    mask = torch.zeros(4, 64, 1, dtype=torch.int64)
    cells = Cells(ints(2), ints(1), ints(4, 64), ints(4), mask, ints(num_rows))
    source_cells = Cells(*cells[:2], ints(4, 32), ints(4))
    x = torch.zeros(num_rows, shape.width, dtype=torch.bfloat16)
    addresses = torch.zeros(3, 26, dtype=torch.int64)
    seen = RowsSee(cells, ints(num_rows), 640, source_cells)
    exchange = exchange_for(shape, 3, num_rows, x.dtype, x.device)
    given = x, addresses, shape, seen, exchange, programs, x
    [launch] = recorded(lambda: decoder_layers(*given))
    return launch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "num_rows"),
    [(LARGE, 5), (SMALL, 16), (LARGE._replace(is_pre_norm=False), 8)],
    ids=str,
)
def test_compiled_well(shape, num_rows):
    """No register goes to memory, and each product asks for its weights before it waits for its rows."""
    programs = PROGRAMS._replace(num_warps=4 if shape.width <= 256 else 8)
    launch = launch_of(shape, num_rows, programs)
    assembly = assemble(launch, 90)
    assert assembly.stack == assembly.local == 0
    # all programs fit the device, one on each multiprocessor
    assert assembly.registers * 32 * programs.num_warps <= 65536
    assert compile_for(launch, 90).metadata.launch_cooperative_grid
    # programs that read each other's numbers need no fence, but for the one with which they leave
    assert assembly.count("MEMBAR") == 1
    loads = loads_before_waits([text for _, text in assembly.code])
    depths = [shape.width] * 4 + [shape.inner_width]
    for depth, phase in zip(depths, PRODUCTS, strict=True):
        # a thread has 16 bytes of 8 columns at a time
        assert loads[phase] >= 8 * depth * 2 // (16 * 32 * programs.num_warps)


def loads_before_waits(texts: list[str]) -> list[int]:
    """How many loads of 16 bytes a program makes between its last product and each wait."""
    found, num, has_waited = [], 0, False
    for text in texts:
        if MULTIPLIES in text:
            num, has_waited = 0, False
        elif re.search(WAITS, text) and not has_waited:
            found.append(num)
            has_waited = True
        num += bool(re.search(LOADS, text))
    assert len(found) == 8
    return found


def test_takes():
    def takes(shape: LayersShape, num_rows=5, num_sources=1, programs=PROGRAMS) -> bool:
        return takes_layers(shape, num_rows, num_sources, programs)

    assert takes(LARGE) and takes(LARGE, 8, 4)
    small = PROGRAMS._replace(num_warps=4)
    assert takes(SMALL, programs=small) and takes(SMALL, 16, 4, small)
    # rows
    assert not takes(LARGE, 0) and not takes(LARGE, 9) and not takes(SMALL, 17, 4, small)
    assert not takes(LARGE, 8, 16)
    # weights that a program cannot hold
    assert not takes(LARGE._replace(inner_width=8192))
    assert not takes(LARGE, programs=PROGRAMS._replace(num=40))
    # heads and widths that it does not divide
    assert not takes(LARGE._replace(num_heads=10)) and not takes(LARGE._replace(num_heads=128))
    assert not takes(SMALL._replace(inner_width=1000))


def test_a_program_for_each_multiprocessor(monkeypatch):
    monkeypatch.setattr("pybeam.triton_kernels.persistent.num_multiprocessors", lambda _: 132)
    own = [programs_of(shape, torch.device("cuda")) for shape in (LARGE, SMALL)]
    assert [(one.num, one.num_warps) for one in own] == [(132, 8), (132, 4)]
