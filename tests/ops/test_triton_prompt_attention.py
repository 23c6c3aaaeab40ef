"""The Triton kernel of `prompt_attention` without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.triton_kernels.attention import variants
from pybeam.triton_kernels.attention.prompts import prompt_attention
from support.aot import CAPABILITIES_TO_TEST, assemble, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/test_prompt_attention.py",
        "-k",
        "row_by_row or biases or heads or rows_behind or no_row",
    )
    run_in_interpreter("tests/ops/interpreted/test_prompt_tiles.py")


@pytest.mark.slow
@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
# h2o-danube3 has 120: lines begin at 16 bytes, and their sizes are no multiples of 16 numbers
@pytest.mark.parametrize("size", [64, 120, 128, 256])
@pytest.mark.parametrize("num_rows", [64, 1024])
@pytest.mark.parametrize("options", [(0, 0.0, False), (512, 30.0, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_well(dtype, options, num_rows, size, capability, monkeypatch):
    (window, cap, has_bias), ints = options, dict(dtype=torch.int32)
    query = torch.empty(num_rows, 16, size, dtype=dtype)
    key, value = torch.empty(2, 4096, 8, size, dtype=dtype)
    cells = torch.empty(5, **ints), torch.empty(4, **ints), torch.empty(4, 512, **ints)
    given = *cells, torch.empty(4, **ints), torch.empty(num_rows, **ints), 0.1, window, cap
    bias = torch.empty(16, 128) if has_bias else None
    monkeypatch.setattr(variants, "num_multiprocessors", lambda device: 132)
    [launch] = recorded(lambda: prompt_attention(query, key, value, *given, bias))
    is_tall = launch.options["ROWS"] == variants.MANY_ROWS
    assert is_tall == (num_rows == 1024 and dtype == torch.bfloat16)
    assembly = assemble(launch, capability)
    assert assembly.local == 0
    # long lines in float32 take more registers than there are
    assert assembly.stack <= (64 if dtype == torch.float32 else 16)
    # keys and values come many bytes at once, straight to shared memory
    assert assembly.count(r"LDGSTS\.E\.BYPASS\.128") >= 16


@pytest.mark.parametrize(("size", "is_tall"), [(256, True), (257, False)])
def test_tall_tiles_are_of_heads_that_fit(size, is_tall):
    variant = variants.prompt_variant_of(1024, 16, size, 2, torch.device("cpu"))
    assert (variant.ROWS == variants.MANY_ROWS) == is_tall
