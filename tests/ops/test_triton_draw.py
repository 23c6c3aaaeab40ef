"""The Triton kernels of samples, without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.triton_kernels.draw import draw
from support.aot import CAPABILITIES_TO_TEST, Launch, assemble, distinct, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_draw.py")
    run_in_interpreter("tests/processors/test_sampling.py", "-k", "temperature_of_zero")


def launches(num_rows: int, num_columns: int, has_cuts: bool) -> list[Launch]:
    floats, ints = torch.zeros(9), torch.zeros(9, dtype=torch.int32)
    places = [torch.zeros(num_rows, dtype=torch.int32) for _ in range(2)]
    given = torch.zeros(num_rows, num_columns), floats, ints.long()
    cuts = (ints, floats, floats) if has_cuts else ()
    return recorded(lambda: draw(*given, cuts, ints, ints, *places, (2,)))


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_compiled_well(capability):
    sizes = [(64, 42000), (64, 32001), (1, 42000)]
    calls = [launches(*size, has_cuts) for size in sizes for has_cuts in (True, False)]
    kernels = distinct([launch for call in calls for launch in call])
    assert {launch.kernel.__name__ for launch in kernels} == {"parts_kernel", "settle_kernel"}
    for launch in kernels:
        assembly = assemble(launch, capability)
        assert assembly.local == 0 and assembly.registers <= 128, launch.kernel
        # divisions in float64 are calls
        assert assembly.stack <= 48, launch.kernel


@pytest.mark.slow
def test_most_numbers_are_not_computed_in_float64():
    """A thread has 8 tokens, and the code that finds its EOS."""
    parts, _ = launches(64, 42000, has_cuts=True)
    [loop] = [one for one in assemble(parts, 90).loops if one.count("MUFU.LG2") >= 16][:1]
    assert loop.count("MUFU.LG2") == 16 and not loop.count(r"\b(DADD|DMUL|DFMA)\b")
    assert len(loop.instructions) <= 600
