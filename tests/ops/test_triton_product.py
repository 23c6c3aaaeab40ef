"""The Triton kernel of `product` without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.backends.torch_layers import Activation
from pybeam.triton_kernels.product import product
from support.aot import CAPABILITIES_TO_TEST, Launch, assemble, recorded

# rows, columns and depth, and whether rows are normalised: those of layers of 256 and of 1,024
SHAPES = [
    (5, 768, 256, True),
    (64, 256, 256, False),
    (5, 256, 1024, False),
    (5, 4096, 1024, True),
    (16, 3072, 1024, True),
    (16, 1024, 4096, False),
]


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter("tests/ops/interpreted/test_product.py")


def launch_of(
    num_rows: int, num_columns: int, depth: int, has_norm: bool, dtype: torch.dtype
) -> Launch:
    x, weight, vector = (torch.empty(n, depth, dtype=dtype) for n in (num_rows, num_columns, 1))
    residual = torch.empty(num_rows, num_columns, dtype=dtype)
    norm = (vector[0], vector[0], 1e-5) if has_norm else None
    given = x, weight, residual[0], Activation.RELU, None if has_norm else residual, norm
    [launch] = recorded(lambda: product(*given))
    return launch


@pytest.mark.slow
@pytest.mark.thinned()
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_well(shape, dtype, capability):
    if dtype == torch.float32 and shape[2] > 1024:
        pytest.skip("such rows do not fit")
    assembly = assemble(launch_of(*shape, dtype), capability)
    assert assembly.stack == assembly.local == 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_go_straight_to_tensor_cores(shape):
    """All loads come first, weights before others, and no operand passes through shared memory."""
    assembly = assemble(launch_of(*shape, torch.bfloat16), 90)
    texts = [text for _, text in assembly.code]
    first = {
        name: next(i for i, text in enumerate(texts) if name in text)
        for name in ("LDG.E.128", "ACQBULK", "HMMA", "STS")
    }
    last_read = max(i for i, text in enumerate(texts) if "LDG.E.128" in text)
    assert first["LDG.E.128"] < first["ACQBULK"] < last_read < min(first["HMMA"], first["STS"])
    # sums of parts pass through it, operands would take 16 KB and more
    assert assembly.shared <= 16 * 1024
