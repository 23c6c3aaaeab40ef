"""The Triton kernels of decoder-only layers, without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.backends.torch_layers import Activation
from pybeam.triton_kernels.embedding import embed_norm
from pybeam.triton_kernels.layers import add_norm, gated, rms_norm, rotary
from support.aot import CAPABILITIES_TO_TEST, assemble, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/test_rms_norm.py",
        "tests/ops/interpreted/test_add_norm.py",
        "tests/ops/interpreted/test_embed_norm.py",
        "tests/ops/test_rotary.py",
        "tests/ops/test_gated.py",
        "-k",
        "not any_team and not wrong_arguments and not 200",
    )


def launches(dtype: torch.dtype) -> list:
    x, heads = torch.empty(9, 4096, dtype=dtype), torch.empty(9, 24, 128, dtype=dtype)
    table, position = torch.empty(50, 64), torch.zeros(9, dtype=torch.int32)
    return recorded(
        lambda: (
            rms_norm(x, x[0], 1e-6),
            add_norm(x, x, x[0], x[0], x[0], 1e-5),
            add_norm(x, x, None, x[0], None, 1e-5),
            add_norm(heads[:, 0].contiguous(), heads[:, 1].contiguous(), None, x[0], x[0], 1e-5),
            embed_norm(position, position, x, x, 2.0, 1, [None, (x[0], x[0], 1e-5)]),
            embed_norm(position, position, x, x[:0], 2.0, -1, [(x[0], x[0], 1e-5), None]),
            rms_norm(heads[:, :16], heads[0, 0], 1e-6),
            rotary(heads[:, 16:20], position, table, table),
            gated(x, Activation.SILU),
            gated(x, Activation.GELU),
            gated(x, Activation.TANH_GELU),
        )
    )


@pytest.mark.slow
@pytest.mark.thinned()
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_well(dtype, capability):
    for launch in launches(dtype):
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == 0
        assert assembly.registers <= 64
