"""The Triton kernels of samples, without a GPU."""

from __future__ import annotations

import pytest

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from support.aot import CAPABILITIES_TO_TEST, assemble, distinct
from support.triton_launches import cut_launches, draw_launches


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_draw.py")
    run_in_interpreter("tests/ops/interpreted/test_cut.py")
    run_in_interpreter("tests/processors/test_sampling.py", "-k", "temperature_of_zero")


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_compiled_well(capability):
    sizes = [(64, 42000), (64, 32001), (1, 42000)]
    calls = [draw_launches(*size, has_cuts) for size in sizes for has_cuts in (True, False)]
    kernels = distinct([launch for call in calls for launch in call])
    assert {launch.kernel.__name__ for launch in kernels} == {"parts_kernel", "settle_kernel"}
    for launch in kernels:
        assembly = assemble(launch, capability)
        assert assembly.local == 0 and assembly.registers <= 128, launch.kernel
        # divisions in float64 are calls
        assert assembly.stack <= 48, launch.kernel


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_cuts_compiled_well(capability):
    sizes = [(64, 42000), (64, 32001), (1, 42000)]
    kernels = distinct([launch for size in sizes for launch in cut_launches(*size)])
    assert len(kernels) == 3
    for launch, most in zip(kernels, (40, 128, 40), strict=True):
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0
        assert assembly.registers <= most, launch.arguments


@pytest.mark.slow
def test_most_numbers_are_not_computed_in_float64():
    """A thread has 8 tokens, and the code that finds its EOS."""
    parts, _ = draw_launches(64, 42000, has_cuts=True)
    [loop] = [one for one in assemble(parts, 90).loops if one.count("MUFU.LG2") >= 16][:1]
    assert loop.count("MUFU.LG2") == 16 and not loop.count(r"\b(DADD|DMUL|DFMA)\b")
    assert len(loop.instructions) <= 600
