"""The Triton kernel of `product` without a GPU."""

from __future__ import annotations

import re

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.backends.narrow import stored
from pybeam.backends.packing import Quantised
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


@pytest.mark.slow
def test_models_in_the_interpreter():
    run_in_interpreter("tests/models/test_narrow.py", "-k", "on_a_gpu and int8-floats")


KINDS = {
    "float32": lambda n, depth: torch.empty(n, depth),
    "bfloat16": lambda n, depth: torch.empty(n, depth, dtype=torch.bfloat16),
    "int8": lambda n, depth: held(n, depth),
    "float8": lambda n, depth: held(n, depth, torch.float8_e4m3fn),
    "int4": lambda n, depth: held(n, depth, num_groups=depth // 32),
}


def held(
    num_columns: int, depth: int, dtype: torch.dtype = torch.int8, num_groups: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in 8 bits, or in 4 with so many groups."""
    q = torch.zeros(num_columns, depth, dtype=torch.uint8).view(dtype)
    scale = torch.ones(num_columns)
    if num_groups is not None:
        scale = torch.ones(num_columns, num_groups, dtype=torch.bfloat16)
    return tuple(stored(Quantised(q, scale)))


def launch_of(num_rows: int, num_columns: int, depth: int, has_norm: bool, kind: str) -> Launch:
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    x, vector = (torch.empty(n, depth, dtype=dtype) for n in (num_rows, 1))
    weight = KINDS[kind](num_columns, depth)
    residual = torch.empty(num_rows, num_columns, dtype=dtype)
    norm = (vector[0], vector[0], 1e-5) if has_norm else None
    given = x, weight, residual[0], Activation.RELU, None if has_norm else residual, norm
    [launch] = recorded(lambda: product(*given))
    return launch


@pytest.mark.parametrize(("depth", "is_one"), [(40, True), (48, False)])
def test_a_norm_adds_in_one_order_whatever_the_number_of_rows(depth, is_one):
    few, many = (launch_of(n, 16, depth, True, "bfloat16").options["ROWS"] for n in (1, 64))
    assert many == 16 and (few == many) == is_one


@pytest.mark.slow
@pytest.mark.thinned()
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_well(shape, kind, capability):
    if kind == "float32" and shape[2] > 1024:
        pytest.skip("such rows do not fit")
    if kind == "float8" and capability < 89:
        pytest.skip("models in E4M3 are refused there")
    assembly = assemble(launch_of(*shape, kind), capability)
    assert assembly.stack == assembly.local == 0


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("num_columns", [256, 4096])
def test_large_matrices_are_the_first_to_leave_the_cache(num_columns, kind):
    """A small model's stay: they would be read from memory in the next step."""
    assembly = assemble(launch_of(5, num_columns, 1024, False, kind), 90)
    num_streamed, num_read = assembly.count(r"LDG\.E\.EF"), assembly.count(r"LDG\.E\S*\.128")
    assert (num_streamed > 0) == (num_columns == 4096)
    # rows stay, and so does what they are added to
    assert num_streamed < num_read


@pytest.mark.slow
@pytest.mark.thinned(most=8)
@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4", "float8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_go_straight_to_tensor_cores(shape, kind):
    """All loads come first, weights before others; no operand passes through shared memory or other lanes."""
    assembly = assemble(launch_of(*shape, kind), 90)
    texts = [text for _, text in assembly.code]
    reads = [i for i, text in enumerate(texts) if re.search(r"LDG\.E\S*\.128", text)]
    waits, multiplies, leaves = (
        next(i for i, text in enumerate(texts) if name in text)
        for name in ("ACQBULK", "HMMA", "STS")
    )
    assert reads[0] < waits < reads[-1] < min(multiplies, leaves)
    # sums of parts pass through it, operands would take 16 KB and more
    assert assembly.shared <= 16 * 1024
    if kind != "bfloat16":
        like = assemble(launch_of(*shape, "bfloat16"), 90)
        assert assembly.count("SHFL") <= like.count("SHFL")
