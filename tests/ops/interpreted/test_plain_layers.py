"""Decoders alone whose weights are plain, as on a GPU: their norms, gates and turns are Triton's, too."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam.backends import triton
from pybeam.models import load_model
from support.causal_models import save_tiny_causal

# functions that a step calls, and how often in a layer
CALLS = {
    "qwen3": {"turn_heads": 1, "gated": 1},
    "llama": {"turn_heads": 1, "gated": 1},
    # two groups of layers with other angles, and norms behind what layers add
    "gemma3": {"rms_norm": 2, "turn_heads": 1, "gated": 1},
    "falcon": {"turn_heads": 1},
    "qwen3_moe": {"turn_heads": 1},
    # a quarter of a head turns
    "gpt_neox": {"turn_heads": 1},
}
NUM_STEPS = 5


@pytest.mark.parametrize("kind", CALLS)
def test_as_with_torch(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)
    save_tiny_causal(tmp_path, kind)
    model = load_model(tmp_path, device="cpu")
    counts: dict[str, int] = {}

    def counted(name: str):
        own = getattr(triton, name)

        def call(*given):
            counts[name] = counts.get(name, 0) + 1
            return own(*given)

        return call

    for name in ("rms_norm", "turn_heads", "gated"):
        monkeypatch.setattr(triton, name, counted(name))

    def results(backend: str):
        algorithm = pybeam.fixed_beam(3, min_length=NUM_STEPS, max_length=NUM_STEPS + 1)
        found = pybeam.Decoder(model, algorithm, backend=backend).decode([[5, 6, 7], [8]])
        return [(one.tokens, one.score) for result in found for one in result.hypotheses]

    expected = results("reference")
    assert not counts
    found = results("triton")
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    scores = [torch.tensor([score for _, score in some]) for some in (found, expected)]
    assert torch.allclose(*scores, atol=1e-4)
    for name, number in CALLS[kind].items():
        # prompts are read before the first step
        assert counts[name] >= number * len(model.stack.layers) * NUM_STEPS, counts
