"""The Triton kernels of stochastic beams, without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.triton_kernels.logits.gumbel import perturb, restore_log_probs
from support.aot import CAPABILITIES_TO_TEST, assemble, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_gumbel_kernels.py")
    # a whole search, whose scores follow from the definition
    run_in_interpreter("tests/processors/test_gumbel.py", "-k", "given_outputs")


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def launches() -> list:
    log_probs, state, totals = torch.empty(9, 42000), ints(4, 90).long(), torch.empty(4, 90)
    lines, score, alive = ints(4, 20), torch.empty(4, 5), torch.ones(4, 5, dtype=torch.bool)
    places = [ints(9) for _ in range(5)]
    kept = torch.empty(3, 10)
    return recorded(
        lambda: (
            perturb(
                log_probs,
                state[0, :9].contiguous(),
                state,
                totals,
                ints(4, 90),
                totals,
                lines[:, 3],
                score,
                *places,
            ),
            restore_log_probs(
                kept, ints(3, 10), ints(3, 10), log_probs, alive, lines[:, 3], *places[:3]
            ),
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
def test_compiled_well(capability):
    kernels = launches()
    assert [launch.kernel.__name__ for launch in kernels] == [
        "largest_kernel",
        "perturb_kernel",
        "restore_kernel",
    ]
    for launch in kernels:
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0, launch.kernel
        assert assembly.registers <= 168, launch.kernel
