"""Tree attention in parts: however a tree is split, the same result, and counters back at zero."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch

from pybeam.backends import reference, triton
from pybeam.contracts import Cells, Paths
from pybeam.triton_kernels import attention, counters
from support.asserts import assert_close


@pytest.fixture(autouse=True)
def held_counters(device, monkeypatch):
    """The counters of all launches of a test, which must be zero again when it ends."""
    held = torch.zeros(4096, dtype=torch.int32, device=device)
    monkeypatch.setattr(attention, "counters", lambda num, _: held)
    yield held
    assert not bool(held.any())


def random_case(rows, cells, heads, key_heads, size, dtype, words, device) -> list:
    torch.manual_seed(sum(rows) + sum(cells))
    num_sources, most = len(rows), max(cells)
    pool = torch.randn(2, num_sources * most, key_heads, size).to(dtype)
    cell = torch.randperm(num_sources * most).int().view(num_sources, most)
    query = torch.randn(sum(rows), heads, size).to(dtype)
    mask = bit = None
    if words:
        mask = torch.randint(-(2**63), 2**63 - 1, (num_sources, most, words))
        bit = torch.randint(0, 64 * words, (sum(rows),), dtype=torch.int32)
    offset = torch.tensor([0, *accumulate(rows)], dtype=torch.int32)
    slot = torch.arange(num_sources).flip(0).int()
    num_cells = torch.tensor(cells, dtype=torch.int32)
    case = [query, *pool, offset, slot, cell, num_cells, mask, bit]
    return [None if tensor is None else tensor.to(device) for tensor in case]


def check(case: list, num_splits: int) -> torch.Tensor:
    given = *case[:3], Cells(*case[3:]), 0.3
    actual = triton.tree_attention(*given, num_splits=num_splits)
    assert_close(actual.cpu(), reference.tree_attention(*given).cpu())
    return actual


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7])
@pytest.mark.parametrize("words", [0, 1, 2])
def test_splits(device, words, num_splits):
    # a source with parts to spare, one with a full part and one cell, one that needs no split
    case = random_case([5, 2, 3], [700, 257, 9], 2, 2, 32, torch.float32, words, device)
    check(case, num_splits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "heads", "key_heads"), [(64, 2, 1), (20, 4, 2), (50, 1, 1)])
def test_many_rows(device, rows, heads, key_heads, dtype):
    case = random_case([rows, 1], [300, 600], heads, key_heads, 16, dtype, 2, device)
    check(case, 3)


def test_launches_follow_one_another(device):
    case = random_case([5], [600], 2, 2, 32, torch.float32, 1, device)
    assert torch.equal(check(case, 2), check(case, 2))


def test_an_empty_source_among_long_ones(device):
    case = random_case([5, 4, 0, 1], [600, 1, 300, 600], 2, 1, 32, torch.float32, 1, device)
    case[6][2] = 0
    check(case, 4)


def test_a_row_may_see_nothing_or_a_nan(device):
    case = random_case([5], [600], 1, 1, 32, torch.float32, 1, device)
    query, mask, bit = case[0], case[7], case[8]
    bit[:] = torch.arange(5)
    mask &= ~1
    mask[:, :400] &= ~2  # row 1 sees nothing in the first part
    query[0] = query[3] = math.nan
    actual = check(case, 3)
    assert bool((actual[0] == 0).all())
    assert bool(actual[3].isnan().all())
    assert not bool(actual[[1, 2, 4]].isnan().any())


def test_more_tiles_than_a_beam_needs(device):
    """Long beams beside short ones: several tiles of one source, idle tiles of another."""
    rows = [100, 1, 0, 2, 60]
    case = random_case(rows, [40, 3, 1, 80, 20], 2, 2, 16, torch.float32, 2, device)
    check(case, 1)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_cells_of_all_rows_are_split_and_paths_are_not(device, num_splits):
    case = random_case([20, 2, 1], [700, 40, 9], 2, 2, 32, torch.float32, 0, device)
    place = torch.arange(8).repeat(3, 20, 1).int().to(device)
    length = torch.tensor([8, 0, 4], dtype=torch.int32, device=device)
    shared = torch.tensor([690, 40, 1], dtype=torch.int32, device=device)
    case[8] = torch.tensor([*range(20), 3, 1, 7], dtype=torch.int32, device=device)
    check([*case, Paths(place, length, shared)], num_splits)


def test_many_sources(device):
    case = random_case([1] * 150, [3] * 150, 1, 1, 16, torch.float32, 1, device)
    check(case, 1)


def test_counters_are_shared_along_a_stream(device):
    first, second = (counters.counters(5, device) for _ in range(2))
    assert not bool(first.any())
    assert first.numel() >= 5
    assert (first.data_ptr() == second.data_ptr()) == (device.type == "cuda")


def test_float64_is_refused(device):
    case = random_case([1], [1], 1, 1, 16, torch.float64, 0, device)
    with pytest.raises(ValueError, match="`query` must be one of"):
        triton.tree_attention(*case[:3], Cells(*case[3:]), 0.3)
