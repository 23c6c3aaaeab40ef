"""Rows as E4M3 numbers in one launch: the bits of torch's formula."""

from __future__ import annotations

import math

import pytest
import torch

from pybeam import backends
from pybeam.backends.defaults import rounded_rows as rounded
from pybeam.models.float8 import Float8Linear
from pybeam.triton_kernels import float8


def rows(dtype: torch.dtype) -> torch.Tensor:
    """Rows of every size of numbers, with ties between two E4M3 numbers, and with none."""
    torch.manual_seed(2)
    x = torch.randn(12, 160)
    x[1] *= torch.logspace(-12, 3, 160)
    x[2] = torch.arange(160) * 448 / 159
    # scale 1: all numbers of E4M3, and what lies half way between two of them
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    x[3, :127], x[4, :126] = codes, (codes[1:] + codes[:-1]) / 2
    x[4, 150] = x[5, 3] = 448.0
    x[5, 4:] = -x[4, :156]
    x[6] = 0.0
    x[7, 5], x[8, 6], x[9, 7] = math.nan, math.inf, -math.inf
    x[10] *= 1e-42
    x[11] *= 1e36
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most_columns", [64, 4096])
def test_the_bits_of_torch(dtype, most_columns, device, monkeypatch):
    monkeypatch.setattr(float8, "MOST_COLUMNS", most_columns)
    x = rows(dtype)
    for own in (x, x[:, 3:], x.t().contiguous().t(), x[:0]):
        expected, scale = rounded(own)
        actual, actual_scale = float8.rounded_rows(own.to(device))
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        assert torch.equal(actual_scale.cpu().nan_to_num(nan=-1), scale.nan_to_num(nan=-1))
        # the sign of a NaN may be another
        ours, theirs = (p.cpu().view(torch.uint8) for p in (actual, expected))
        is_nan = (theirs & 0x7F) == 0x7F
        assert torch.equal((ours & 0x7F) == 0x7F, is_nan)
        assert torch.equal(ours[~is_nan], theirs[~is_nan])


def test_a_layer_takes_the_kernel_of_its_backend():
    layer = Float8Linear(rows(torch.float32)[:6, :32], None)
    own = layer.with_backend(backends.load("triton"))
    x = rows(torch.float32)[:6, 32:64]
    assert torch.equal(own(x), layer(x))
    assert own._rounded is float8.rounded_rows and layer._rounded is rounded
    assert own.with_backend(backends.load("reference"))._rounded is rounded
