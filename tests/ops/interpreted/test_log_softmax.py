"""Log-probabilities in one launch, beside torch's."""

from __future__ import annotations

import math

import pytest
import torch

from pybeam.backends.defaults import log_softmax as of_torch
from pybeam.triton_kernels.logits import log_softmax as kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [4, 64])
def test_as_torch(dtype, block, device, monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK", block)
    torch.manual_seed(block)
    logits = (9 * torch.randn(7, 21)).to(dtype)[:, 1:]
    logits[0] = logits[1, 3:] = logits[2, :-1] = -math.inf
    logits[3, 5], logits[4, 5], logits[5] = math.nan, math.inf, 80.0
    expected = of_torch(logits.float())
    actual = kernels.log_softmax(logits.to(device)).cpu()
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=2e-6, equal_nan=True)
    assert actual[0].tolist() == [-math.inf] * 20 and actual[2, -1] == 0.0
