"""Drafts whose lines several programs read: counters are back at zero for the next launch."""

from __future__ import annotations

import torch

from pybeam.backends import triton
from pybeam.triton_kernels import accept_draft


def test_counters_are_left_at_zero(device, monkeypatch):
    held = torch.zeros(64, dtype=torch.int32, device=device)
    monkeypatch.setattr(accept_draft, "counters", lambda num, device: held)
    logits = torch.randn(2, 3, 20_011, device=device)
    draft = torch.zeros(2, 3, dtype=torch.int32, device=device)
    for _ in range(2):
        token, *_ = triton.accept_draft(logits, draft, 2)
        assert torch.equal(token.long(), logits.argmax(-1))
        assert not bool(held.any())
