"""Kernels touch nothing beside their tensors: these lie between pages that end a process that does."""

from __future__ import annotations

import ctypes
import mmap
from types import SimpleNamespace

import pytest
import torch

from pybeam.backends import reference, triton
from pybeam.contracts import Cells, NewNodes, Paths, SelectOptions
from support.asserts import assert_same_survivors
from support.attention_cases import random_case
from support.cuda_on_cpu import Emulated

PAGE = mmap.PAGESIZE


@pytest.fixture(params=["begin", "end"])
def walled(request, device, monkeypatch):
    """Copies a tensor so that it begins, or ends, at a page that nobody may touch; so do results.

    If only the first so many lines of a tensor may be read, the others lie within such pages.
    """
    if device.type == "cuda":
        pytest.skip("pages of a GPU have no such protection")
    libc = ctypes.CDLL(None, use_errno=True)

    def copy(tensor: torch.Tensor, readable: int | None = None) -> torch.Tensor:
        num_bytes = tensor[:readable].numel() * tensor.itemsize
        beyond = tensor.numel() * tensor.itemsize - num_bytes
        room, wall_bytes = -(-num_bytes // PAGE) * PAGE, (beyond // PAGE + 1) * PAGE
        memory = mmap.mmap(-1, PAGE + room + wall_bytes)
        start = PAGE if request.param == "begin" else PAGE + room - num_bytes
        inside = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=start)
        copied = inside.view(tensor.shape).copy_(tensor)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for wall, size in (address, PAGE), (address + PAGE + room, wall_bytes):
            assert libc.mprotect(ctypes.c_void_p(wall), size, 0) == 0
        return copied

    def empty(*shape, dtype: torch.dtype = torch.float32, device: object = None) -> torch.Tensor:
        return copy(torch.zeros(*shape, dtype=dtype))

    monkeypatch.setattr(torch, "empty", empty)
    return copy


@pytest.fixture(params=["triton", "cuda"])
def select(request):
    """`select` in Triton, and in CUDA C++ on the CPU."""
    if request.param == "triton":
        return triton.select
    return Emulated(request.getfixturevalue("cuda_on_cpu"), 1 << 20, runs_backwards=False).select


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("held", [False, True])
def test_rows_of_padding_leave_select_before_they_read(walled, select, held, dtype):
    """Rows and entries behind those that `offset` counts, which a step of fixed size has."""
    num_rows, num_entries, beyond = 3, 3 + held, 5
    # a row fills a page, so that no row shares one with a row of padding
    logits = torch.randn(num_rows + beyond, PAGE // dtype.itemsize).to(dtype)
    score = -torch.rand(num_entries + beyond)
    offset, width = ints([0, 2 + held, 2 + held, 3 + held]), ints([3, 2, 2])
    is_ended = torch.arange(num_entries + beyond) == 1 if held else None
    counted = SelectOptions(3, (2,), is_ended=is_ended[:num_entries] if held else None)
    expected = reference.select(logits[:num_rows], score[:num_entries], offset, width, counted)
    arrays = walled(logits, num_rows), walled(score, num_entries), walled(offset), walled(width)
    padded = SelectOptions(3, (2,), is_ended=walled(is_ended, num_entries) if held else None)
    assert_same_survivors(select(*arrays, padded), expected)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("words", [0, 2])
@pytest.mark.parametrize("rows", [[0, 5, 0], [3, 20]])
def test_tree_attention(walled, rows, words, num_splits):
    cells = [300, 17, 0][: len(rows)]
    case = random_case(rows, cells, 2, 2, 20, words=max(words, 1), masked=words > 0)
    # slots in order and no room beyond the longest list, so that the walls stand right behind
    most, num = max(cells), len(rows)
    case["slot"], case["num_cells"] = torch.arange(num).flip(0).int(), ints(cells[::-1])
    case["cell"] = torch.randint(0, 40, (num, most), dtype=torch.int32)
    case["key"], case["value"] = torch.randn(2, 40, 2, 20)
    if words:
        case["mask"] = case["mask"][:num, :most]
    case = {name: walled(tensor) for name, tensor in case.items()}
    vectors = [case.pop(name) for name in ("query", "key", "value")]
    out = triton.tree_attention(*vectors, Cells(**case), 0.3, num_splits=num_splits)
    assert not bool(out.isnan().any())


@pytest.mark.parametrize("has_paths", [False, True])
def test_new_nodes(walled, has_paths):
    """A source lists more cells than there are rows, and some rows have no source."""
    pool, cell = walled(torch.randn(40, 2, 2, 20)), torch.randperm(40).int()
    key, value = walled(torch.randn(7, 2, 20)), walled(torch.randn(7, 2, 20))
    new = NewNodes(key, value, walled(ints([*cell[17:20].tolist(), *cell[22:24].tolist(), -1, 40])))
    tables = ints([0, 3, 5]), ints([0, 1]), cell.view(2, 20), ints([20, 4])
    places = torch.arange(20).int().expand(2, 3, 20).contiguous()
    paths = Paths(walled(places), walled(ints([20, 4]))) if has_paths else None
    entry = walled(ints([0, 1, 2, 0, 1, 0, 0]))
    vectors = walled(torch.randn(7, 2, 20)), *pool.unbind(1)
    cells = Cells(*map(walled, tables), None, entry, paths)
    out = triton.tree_attention(*vectors, cells, 0.3, None, new)
    assert not bool(out[:5].isnan().any())
    assert torch.equal(pool[new.cell[:5].long()], torch.stack((key, value), 1)[:5])


@pytest.mark.parametrize("words", [0, 2])
def test_prompts(walled, words):
    """The last slot's prompt and tree fill their lines, and rows of padding go nowhere."""
    slot, num_slots, most, lives = ints([2, 0, 1]), 3, 600, 20
    live, num_live = walled(torch.arange(60).int().view(3, lives)), walled(ints([0, 3, lives]))
    mask = walled(torch.ones(num_slots, lives, words, dtype=torch.int64)) if words else None
    places = walled(torch.zeros(num_slots, 2, 9).int()), walled(ints([0, 1, 9]))
    paths = None if words else Paths(*places)
    entry = walled(ints([0, 1, 0, 0]))
    own = Cells(walled(ints([0, 2, 2, 3])), walled(slot), live, num_live, mask, entry, paths)
    rows = SimpleNamespace(
        token=walled(ints([1, 2, 3, 0])),
        position=walled(ints([0, 1, 0, 0])),
        row_slot=walled(ints([2, 2, 1, 0])),
        cell=walled(ints([4, 59, 60, -1])),
    )
    length = walled(ints([0, 1, most]))
    prompts = walled(torch.arange(3 * most).int().view(3, most)), length, walled(ints([7, 8, 9]))
    at = walled(torch.zeros(60, 1).int())
    first_row = walled(ints([0, 5, 6]))
    *given, cells = triton.prepend_prompts(rows, own, prompts, 60, first_row, at)
    assert [one.tolist() for one in given] == [[9, 2, 8, 7], [600, 601, 1, 0], [606, 607, 6, 0]]
    assert cells.num_cells.tolist() == [0, 4, 620]
    assert at.flatten().nonzero().flatten().tolist() == [4, 59]


@pytest.mark.parametrize("num_moves", [5, 600])
def test_rows(walled, num_moves):
    tensor, index = walled(torch.randn(700, 9)), torch.randperm(700)[:num_moves].int()
    expected = tensor.clone()
    expected[index.flip(0).long()] = tensor[index.long()]
    triton.gather_rows([tensor], walled(index), walled(index.flip(0)))
    assert torch.equal(tensor, expected)
    rows = torch.randn(num_moves, 9)
    expected[index.long()] = rows
    triton.scatter_rows(tensor, walled(index), walled(rows))
    assert torch.equal(tensor, expected)


@pytest.mark.parametrize("beyond", [-1, 700, 2**30])
def test_rows_that_are_not_there(walled, beyond):
    tensor, index = walled(torch.randn(700, 9)), walled(ints([0, beyond, 699]))
    before = tensor.clone()
    triton.gather_rows([tensor], index, index)
    triton.scatter_rows(tensor, index, walled(torch.ones(3, 9)))
    assert (tensor != before).any(1).nonzero().flatten().tolist() == [0, 699]


def test_backtrace(walled):
    token = walled(torch.arange(2 * 2048).int().view(2, 2048))
    parent = walled((torch.arange(2 * 2048) % 2048 - 1).int().view(2, 2048))
    # the longest stands last: what overflows its line leaves the tensor
    slot, node = walled(ints([0, 2, -1, 0, 1])), walled(ints([0, 0, 5, 2048, 2047]))
    _, length = triton.backtrace(token, parent, slot, node, 5)
    assert length.tolist() == [1, 0, 0, 0, 2048]
