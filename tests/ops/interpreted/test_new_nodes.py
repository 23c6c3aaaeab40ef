"""Attention that writes keys and values itself: the bits of `scatter_rows` and then attention."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch

from pybeam.backends import triton
from pybeam.contracts import Cells, Distances, NewNodes, Paths
from support.attention_cases import ints

# rows of each source, and the cells of its older nodes
SOURCES = ((5, 9), (0, 4), (1, 0), (3, 12), (2, 1))


def case_of(
    device,
    *,
    heads=4,
    key_heads=2,
    size=16,
    dtype=torch.float32,
    sources=SOURCES,
    words=1,
    width=None,
    num_padding=2,
    shares=False,
):
    """Make a step of random trees: pools whose new cells hold NaN, masks or paths, and the new nodes.

    The rows of a source see its old nodes at random, and the new nodes up to their own, as rows that guess
    ahead do.

    Args:
        words: of masks; 0: paths.
        shares: all rows see old nodes but the last six, and paths do not name them.
    """
    generator = torch.Generator().manual_seed(heads + size + len(sources))

    def randn(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    num_slots, most = len(sources) + 2, max(map(sum, sources)) + 3
    total, num_rows = num_slots * most, sum(rows for rows, _ in sources)
    free = torch.randperm(total, generator=generator).int()
    slot = 1 + torch.randperm(num_slots - 1, generator=generator)[: len(sources)].int()
    cell = torch.full((num_slots, most), 2**30, dtype=torch.int32)
    num_cells = torch.zeros(num_slots, dtype=torch.int32)
    pool = torch.full((total, 2, key_heads, size), math.nan, dtype=dtype)
    width = width or max(rows for rows, _ in sources)
    mask = torch.zeros(num_slots, most, max(words, 1), dtype=torch.int64)
    path = torch.full((num_slots, width, most), -1, dtype=torch.int32)
    num_shared = torch.zeros_like(num_cells)
    new_cell, entry = [], []
    for p, (rows, old) in zip(slot.tolist(), sources, strict=True):
        own, free = free[: rows + old], free[rows + old :]
        cell[p, : rows + old], num_cells[p] = own, rows + old
        pool[own[:old].long()] = randn(old, 2, key_heads, size)
        new_cell.append(own[old:])
        shared = num_shared[p] = max(old - 6, 0) if shares else 0
        entries = torch.randperm(width, generator=generator)[:rows].sort().values
        entry.append(entries)
        for q, e in enumerate(entries.tolist()):
            seen = torch.rand(rows + old, generator=generator) < 0.7
            seen[old:] = torch.arange(rows) <= q
            seen[:shared] = False
            places = seen.nonzero()[:, 0]
            path[p, e, : len(places)] = places.int() - shared
            bit = 1 << e % 64
            mask[p, places, e // 64 if words else 0] |= bit - (1 << 64) if bit >> 63 else bit
    length = (path >= 0).sum(2).amax(1).int()
    qkv = randn(num_rows + num_padding, heads + 2 * key_heads, size)
    query, key, value = qkv.to(device).split((heads, key_heads, key_heads), 1)
    padding = torch.full((num_padding,), -1)
    new = NewNodes(key, value, torch.cat((*new_cell, padding)).int().to(device))
    rows = torch.cat((*entry, padding.clamp(min=0))).int().to(device)
    offset = ints([0, *accumulate(count for count, _ in sources)])
    tables = (tensor.to(device) for tensor in (offset, slot, cell, num_cells))
    seen = (mask.to(device), rows) if words else (None, rows)
    paths = None if words else Paths(path.to(device), length.to(device), num_shared.to(device))
    return pool.to(device), [query, *tables, *seen], new, paths


def check(case, distances=None, num_splits=None):
    pool, (query, *tables), new, paths = case
    expected, written = pool.clone(), pool.clone()
    triton.scatter_rows(expected, new.cell, torch.stack((new.key, new.value), 1))

    def attend(both, *more):
        given = Cells(*tables, paths), 0.3, distances, *more
        return triton.tree_attention(query, *both.unbind(1), *given, num_splits=num_splits)

    actual = attend(written, new)
    num_rows = int(tables[0][-1])
    assert torch.equal(actual[:num_rows], attend(expected)[:num_rows])
    assert not bool(actual[:num_rows].isnan().any())
    assert torch.equal(written.nan_to_num(), expected.nan_to_num())
    assert torch.equal(written.isnan(), expected.isnan())


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (8, 2), (6, 1), (7, 1)])
@pytest.mark.parametrize("words", [0, 1])
def test_heads(device, heads, key_heads, words):
    check(case_of(device, heads=heads, key_heads=key_heads, words=words))


@pytest.mark.parametrize("words", [0, 2])
def test_several_tiles_of_a_source_read_its_new_nodes(device, words):
    """Seven heads share a key: the heads of a row stand in two tiles, and one of them writes."""
    sources = ((6, 2), (1, 3), (3, 0))
    check(case_of(device, heads=7, key_heads=1, sources=sources, words=words, width=128))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("words", [0, 1])
def test_splits(device, words, dtype):
    sources = ((5, 300), (9, 700), (2, 1), (0, 3))
    more = dict(words=words, shares=not words, heads=2, key_heads=1)
    check(case_of(device, sources=sources, dtype=dtype, **more), num_splits=3)


@pytest.mark.parametrize("words", [0, 1])
def test_distances(device, words):
    case = case_of(device, words=words, size=20)
    num_rows, num_cells = case[1][0].shape[0], case[0].shape[0]
    generator = torch.Generator().manual_seed(0)
    position, cell_position = (
        torch.randint(0, 14, (num,), generator=generator).int() for num in (num_rows, num_cells)
    )
    bias = torch.randn(4, 9, generator=generator).to(device)
    check(case, Distances(position.to(device), cell_position.to(device), bias, 3, 9, 1.5))


@pytest.mark.parametrize("size", [1, 7, 80])
def test_sizes(device, size):
    check(case_of(device, size=size, sources=((3, 5), (1, 2))))


def test_cells_of_rows_that_are_lines_of_their_own(device):
    """As in `Session.read`: every row has a line of cells, and the rows before it stand last there."""
    pool, (query, *_), new, _ = case_of(device, sources=((9, 5),), num_padding=0)
    old = torch.arange(pool.shape[0], device=device)[
        ~torch.isin(torch.arange(len(pool)), new.cell.cpu())
    ]
    old = old[:4].int()
    pool[old.long()] = torch.randn_like(pool[old.long()])
    # rows 0 to 5 continue four old nodes, and rows 6 to 8 are another source
    longest = torch.cat((old, new.cell[:6]))
    cell = torch.stack(
        [longest] * 6
        + [new.cell.new_zeros(10).index_copy(0, torch.arange(3, device=device), new.cell[6:])] * 3
    )
    line = torch.arange(10, dtype=torch.int32, device=device)
    num_cells = ints([5, 6, 7, 8, 9, 10, 1, 2, 3]).to(device)
    tables = [line, line[:-1], cell, num_cells, None, None]
    check((pool, [query, *tables], new, None))


def test_rows_without_a_cell_or_with_a_wrong_one_write_nothing(device):
    case = case_of(device, sources=((4, 3),), num_padding=0)
    pool, (_, _, slot, _, num_cells, *_), new, _ = case
    new.cell[1:3] = torch.tensor([-1, pool.shape[0]], device=device)
    # nobody sees a node without a cell
    num_cells[slot.long()] = 3
    pool.nan_to_num_(0.5)
    written = pool.clone()
    query, *tables = case[1]
    triton.tree_attention(query, *written.unbind(1), Cells(*tables), 0.3, None, new)
    for row in (0, 3):
        pool[int(new.cell[row])] = torch.stack((new.key[row], new.value[row]))
    assert torch.equal(written, pool)


def test_another_dtype_is_refused(device):
    pool, given, new, _ = case_of(device)
    query, *tables = given
    new = new._replace(key=new.key.double())
    with pytest.raises(ValueError, match=r"keys and values of `new` must be torch\.float32"):
        triton.tree_attention(query, *pool.unbind(1), Cells(*tables), 0.3, None, new)
