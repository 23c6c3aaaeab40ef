"""Tall tiles of `prompt_attention`, which a GPU takes in bfloat16 alone: here in float32."""

from __future__ import annotations

import pytest
import torch

from pybeam.triton_kernels.attention import prompts
from pybeam.triton_kernels.attention.variants import MANY_ROWS, PromptVariant
from support.prompts_in_pools import attended, exact, prompt_of


@pytest.mark.parametrize("window", [0, 5, 40])
@pytest.mark.parametrize("cells", [16, 64])
def test_tall_tiles(cells, window, monkeypatch):
    """Tiles with rows of several prompts, of one, and of none."""
    tall = PromptVariant(MANY_ROWS, cells, 16, num_warps=4)
    monkeypatch.setattr(prompts, "prompt_variant_of", lambda *given: tall)
    prompt = prompt_of(150)
    parts = slice(0, 90), slice(30, 150), slice(149, 150)
    found = attended("triton", [(prompt, part) for part in parts], window, 1.5, padding=70)
    rows = exact(prompt, window, 1.5)
    expected = torch.cat([*(rows[part] for part in parts), torch.zeros(70, *rows.shape[1:])])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
