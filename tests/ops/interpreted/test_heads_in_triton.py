"""`turn_heads` of Triton: which rows have no angle, and which numbers it leaves to torch."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends import torch_layers, triton


def test_positions_outside_of_the_table_read_nothing(device):
    """Rows of padding may have any position; their heads become zeros."""
    heads = torch.ones(4, 2, 8, device=device)
    position = torch.tensor([2, -1, 3, 2**31 - 1], dtype=torch.int32, device=device)
    cos, sin = torch.full((2, 3, 4), 0.5, device=device)
    triton.turn_heads(heads, 1, None, (position, cos, sin))
    assert heads[0].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]] * 2
    assert not heads[1:].any()


@pytest.mark.parametrize("num_heads", [1, 3, 16, 40])
def test_heads_of_several_programs(device, num_heads):
    """All heads of a row are as each is alone, whichever program has it."""
    heads = torch.randn(2, num_heads + 3, 128, device=device)
    weight = torch.randn(2, 128, device=device)
    norms = (weight[0], None, 1e-6), (weight[1], None, 1e-6)
    angle = torch.randn(1, 64, device=device)
    angles = torch.zeros(2, dtype=torch.int32, device=device), angle.cos(), angle.sin()
    alone = [heads[:, i : i + 1].contiguous() for i in range(num_heads + 3)]
    triton.turn_heads(heads, num_heads, norms, angles)
    for i, one in enumerate(alone):
        triton.turn_heads(one, int(i < num_heads), norms, angles)
        assert torch.equal(one, heads[:, i : i + 1])


def test_what_is_left_to_torch(device, monkeypatch):
    """Numbers in float64, which would be rounded, and layer norms, which no decoder known has over heads."""
    called = []
    monkeypatch.setattr(triton, "heads_kernel", lambda *given: called.append(given))
    weight = torch.randn(8, device=device)
    for dtype, bias in ((torch.float64, None), (torch.float32, weight), (torch.float32, None)):
        heads = torch.randn(2, 3, 8, dtype=dtype, device=device)
        norms = [(weight.to(dtype), bias, 1e-3)] * 2
        expected = torch_layers.turn_heads(heads, 2, norms, None)
        found = triton.turn_heads(heads, 2, norms, None)
        if not called:
            assert all(map(torch.equal, found, expected))
    assert len(called) == 1
