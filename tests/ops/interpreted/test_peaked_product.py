"""`peaked_product`: logits, the peaks of their groups and the totals of their tiles, from one kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.triton_kernels.peaked_product import (
    Peaked,
    Tile,
    peaked_product,
    tile_of,
)
from support.peaked import peaks_of, totals_of

# one row of each warp and several; columns and a depth that fill no tile, and more groups than a row of peaks
SHAPES = [(1, 64, 64), (5, 300, 40), (17, 65, 130), (130, 129, 72), (3, 8300, 16)]
TILES = {"few rows": Tile(16, 64, 64, 2, 4), "many rows": Tile(64, 128, 64, 2, 4)}


def check(found: Peaked, expected: Tensor, num_columns: int) -> None:
    """Logits are near `expected`, and what is left of them is theirs, `num_columns` for each total."""
    assert found.logits.stride(0) % 8 == 0
    torch.testing.assert_close(found.logits.double(), expected, rtol=2e-2, atol=2e-2)
    assert torch.equal(found.peaks, peaks_of(found.logits))
    torch.testing.assert_close(found.totals, totals_of(found.logits, num_columns), equal_nan=True)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_as_torch(shape, tile, has_bias, device):
    """bfloat16 is not for the interpreter, which multiplies it wrongly."""
    num_rows, num_columns, depth = shape
    x = torch.randn(num_rows, depth + 8, device=device).half()[:, :depth]
    weight = (torch.randn(num_columns, depth, device=device) * depth**-0.5).half()
    bias = torch.randn(num_columns, device=device).half() if has_bias else None
    found = peaked_product(x, weight, bias, tile=tile)
    wide = [None if part is None else part.double() for part in (x, weight, bias)]
    check(found, F.linear(*wide), tile.columns)


def test_the_tile_is_chosen(device):
    x, weight = (torch.randn(n, 24, device=device).half() for n in (3, 200))
    found = peaked_product(x, weight, None)
    check(found, F.linear(x.double(), weight.double()), tile_of(3, 200).columns)


@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:All-NaN slice encountered")
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_numbers_that_are_not_finite(value, device):
    """A NaN and +inf make a total of their own row NaN, and a row of -inf has no sum."""
    x, weight = (torch.randn(n, 24, device=device).half() for n in (3, 200))
    bias = torch.zeros(200, device=device).half()
    x[1] = 0
    bias[:] = value if value == -torch.inf else 0
    if value != -torch.inf:
        x[2, 0], weight[:, 0] = value, weight[:, 0].abs() + 1
    logits, peaks, totals = peaked_product(x, weight, bias)
    # a group of NaN alone has no peak
    assert torch.equal(peaks.nan_to_num(-torch.inf, torch.inf, -torch.inf), peaks_of(logits))
    sums = totals[..., 1]
    if value == -torch.inf:
        assert bool((sums == 0).all())
    else:
        assert sums[2].isnan().all() and not sums[:2].isnan().any()
    expected = totals_of(logits, tile_of(3, 200).columns)[..., 1]
    torch.testing.assert_close(sums, expected, equal_nan=True)
