"""The operator `log_softmax`: the sum of `select`, to the last bit."""

from __future__ import annotations

import math

import pytest
import torch

import pybeam
from pybeam.backends.defaults import log_softmax as of_torch


@pytest.fixture
def log_softmax(isa):
    from pybeam.backends import native

    return native.log_softmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_torch(log_softmax, dtype):
    torch.manual_seed(1)
    logits = (9 * torch.randn(7, 701)).to(dtype)[:, 1:]
    logits[0] = logits[1, 3:] = logits[2, :-1] = -math.inf
    logits[3, 5], logits[4, 5], logits[5] = math.nan, math.inf, 80.0
    expected, before = of_torch(logits.float()), logits.clone()
    actual = log_softmax(logits)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=2e-6, equal_nan=True)
    assert actual[0].tolist() == [-math.inf] * 700 and actual[2, -1] == 0.0
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)


def test_as_select(log_softmax):
    torch.manual_seed(2)
    logits = 5 * torch.randn(4, 300)
    offset = torch.arange(5, dtype=torch.int32)
    width = torch.full((4,), 300, dtype=torch.int32)
    found = pybeam.ops.select(logits, torch.zeros(4), offset, width=width, backend="native")
    assert torch.equal(found.log_prob, log_softmax(logits).gather(1, found.token.long()))
    whole = log_softmax(logits)
    assert all(
        torch.equal(log_softmax(row[None])[0], own) for row, own in zip(logits, whole, strict=True)
    )


def test_float64_is_for_the_reference(log_softmax):
    with pytest.raises(ValueError, match="but is float64; the reference backend takes float64"):
        log_softmax(torch.zeros(1, 3, dtype=torch.float64))
