"""`fill_panels` turns rows into panels as torch does, whatever their dtype and however many."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends import packing

native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float16, torch.int16])
@pytest.mark.parametrize(("num", "size"), [(0, 5), (1, 0), (1, 1), (2, 33), (5, 200)])
def test_as_torch(dtype, num, size):
    rows = torch.randint(-999, 999, (64 * num, size)).to(dtype)
    panels, expected = torch.zeros(2, num, size, 64, dtype=dtype)
    native.fill_panels(panels, rows)
    packing.fill_panels(expected, rows)
    assert torch.equal(panels, expected)


@pytest.mark.parametrize(
    ("panels", "rows", "message"),
    [
        (torch.zeros(1, 3, 64), torch.zeros(63, 3), "`rows` must be a multiple of 64, but are 63"),
        (torch.zeros(1, 3, 64), torch.zeros(64, 4), "`panels` must be"),
        (torch.zeros(1, 3, 64), torch.zeros(64, 3).half(), "`panels` must be float16"),
        (torch.zeros(1, 3, 64), torch.zeros(3, 64).t(), "`rows` must be contiguous"),
        (torch.zeros(64, 3, 1).transpose(0, 2), torch.zeros(64, 3), "`panels` must be contiguous"),
        (torch.zeros(1, 3, 64), torch.zeros(192), "`rows` must have 2 dimensions"),
        (torch.zeros(1, 3, 64).double(), torch.zeros(64, 3).double(), "numbers of 2 or 4 bytes"),
    ],
)
def test_wrong_arguments(panels, rows, message):
    with pytest.raises(ValueError, match=message):
        native.fill_panels(panels, rows)
