"""`scatter_rows` writes strided rows into a strided pool and nowhere else."""

from __future__ import annotations

import pytest
import torch

from pybeam import ops


def ints(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


@pytest.mark.thinned(together=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("num_rows", [0, 1, 5, 64, 500])
def test_as_indexing(backend, device, num_rows, dtype):
    torch.manual_seed(num_rows)
    pool = (4 * torch.randn(2, 2, 600, 2, 16)).to(device, dtype)
    wide = (4 * torch.randn(num_rows, 3 * 32)).to(device, dtype)
    rows = wide[:, 32:64].view(num_rows, 2, 16)
    index = torch.randperm(600)[:num_rows].int().to(device)
    expected = pool.clone()
    expected[1, 0, index.long()] = rows
    ops.scatter_rows(pool[1, 0], index, rows, backend=backend)
    assert torch.equal(pool, expected)


def test_a_pool_with_wide_rows(backend, device):
    pool, rows = torch.zeros(7, 10, device=device), torch.ones(2, 4, device=device)
    ops.scatter_rows(pool[:, 3:7], ints([6, 0]).to(device), rows, backend=backend)
    assert pool.nonzero().tolist() == [[r, c] for r in (0, 6) for c in range(3, 7)]


def test_rows_without_a_place_are_dropped(backend, device):
    pool, rows = torch.zeros(3, 4, device=device), torch.ones(4, 4, device=device)
    ops.scatter_rows(pool, ints([-1, 2, -1, -1]).to(device), rows, backend=backend)
    assert pool.tolist() == [[0] * 4, [0] * 4, [1] * 4]


@pytest.mark.parametrize(
    ("index", "rows", "message"),
    [
        ([7], torch.zeros(1, 4), r"`index` must be from -1 to 6, but is 7"),
        ([-2], torch.zeros(1, 4), r"`index` must be from -1 to 6, but is -2"),
        ([1, 1], torch.zeros(2, 4), r"`index` must be free of repeats"),
        ([1], torch.zeros(1, 3), r"`rows` must be \[n, ...\] = \[1, 4\], but is \[1, 3\]"),
        ([1], torch.zeros(1, 4).half(), r"`rows` must be torch.float32"),
    ],
)
def test_wrong_arguments(index, rows, message):
    with pytest.raises(ValueError, match=message):
        ops.scatter_rows(torch.zeros(7, 4), ints(index), rows)


def test_rows_of_a_pool_lie_apart():
    with pytest.raises(ValueError, match=r"`pool` must be of rows apart in memory"):
        ops.scatter_rows(torch.zeros(1, 4).expand(7, 4), ints([1]), torch.zeros(1, 4))


def test_native_refuses_what_the_door_would_have():
    native = pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    for index in (7, -2):
        with pytest.raises(RuntimeError, match="`index` must be from 0 to 6"):
            native.scatter_rows(torch.zeros(7, 4), ints([index]), torch.zeros(1, 4))
