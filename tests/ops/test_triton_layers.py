"""The Triton kernels of decoder-only layers, without a GPU."""

from __future__ import annotations

import pytest
import torch

from support.triton_process import run_in_interpreter

pytest.importorskip("triton", reason="triton is not installed")

from pybeam.backends.torch_layers import Activation
from pybeam.triton_kernels.embedding import embed_norm
from pybeam.triton_kernels.heads import turn_heads
from pybeam.triton_kernels.layers import add_norm, gated, rms_norm
from support.aot import CAPABILITIES_TO_TEST, assemble, recorded


@pytest.mark.slow
def test_in_the_interpreter():
    run_in_interpreter(
        "tests/ops/test_rms_norm.py",
        "tests/ops/interpreted/test_add_norm.py",
        "tests/ops/interpreted/test_embed_norm.py",
        "tests/ops/test_turn_heads.py",
        "tests/ops/interpreted/test_heads_in_triton.py",
        "tests/ops/interpreted/test_plain_layers.py",
        "tests/ops/test_gated.py",
        "-k",
        "not any_team and not wrong_arguments and not 200",
    )


# H, G, D, half of what turns, and whether heads have norms: Qwen3, Llama, Phi, Gemma 3 and 2, GPT-NeoX
HEADS = [
    *((16, 8, 128, 64, True), (32, 8, 128, 64, False), (32, 32, 80, 40, False)),
    *((4, 1, 256, 128, True), (8, 4, 96, 48, True), (8, 8, 128, 16, False)),
]


def heads_launches(dtype: torch.dtype) -> list:
    def launch(num_heads: int, num_key_heads: int, size: int, half: int, has_norms: bool) -> None:
        # as a product has queries, keys and values
        joint = torch.empty(9, num_heads + 2 * num_key_heads, size, dtype=dtype)
        heads, table = joint[:, : num_heads + num_key_heads], torch.empty(50, half)
        # norms of a model in bfloat16 are float32
        norm = torch.empty(size), None, 1e-6
        position = torch.zeros(9, dtype=torch.int32)
        turn_heads(heads, num_heads, [norm] * 2 if has_norms else None, (position, table, table))

    return recorded(lambda: [launch(*shape) for shape in HEADS])


def launches(dtype: torch.dtype) -> list:
    x, heads = torch.empty(9, 4096, dtype=dtype), torch.empty(9, 24, 128, dtype=dtype)
    position = torch.zeros(9, dtype=torch.int32)
    return recorded(
        lambda: (
            rms_norm(x, x[0], 1e-6),
            add_norm(x, x, x[0], x[0], x[0], 1e-5),
            add_norm(x, x, None, x[0], None, 1e-5),
            add_norm(heads[:, 0].contiguous(), heads[:, 1].contiguous(), None, x[0], x[0], 1e-5),
            embed_norm(position, position, x, x, 2.0, 1, [None, (x[0], x[0], 1e-5)]),
            embed_norm(position, position, x, x[:0], 2.0, -1, [(x[0], x[0], 1e-5), None]),
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


@pytest.mark.slow
@pytest.mark.thinned()
@pytest.mark.parametrize("capability", CAPABILITIES_TO_TEST)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_heads_are_read_and_written_16_bytes_at_a_time(dtype, capability):
    for launch, (*_, has_norms) in zip(heads_launches(dtype), HEADS, strict=True):
        assembly = assemble(launch, capability)
        assert assembly.stack == assembly.local == assembly.shared == 0
        assert assembly.registers <= 64
        # but for the position of the row
        assert assembly.count(r"\bLDG\.E ") == 1
        wide = 1 if dtype == torch.bfloat16 else 2
        # two halves; cosines, sines and weights in float32
        assert assembly.count(r"\bLDG") == 1 + 2 * wide + (8 if has_norms else 4)
        assert assembly.count(r"\bLDG\.E\.128\b") == assembly.count(r"\bLDG") - 1
        assert assembly.count(r"\bSTG\.E\.128\b") == assembly.count(r"\bSTG") == 2 * wide
