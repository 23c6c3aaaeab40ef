"""Rows: more moves than one program can hold, words of every size, and rows that are not there."""

from __future__ import annotations

import pytest
import torch

from pybeam.backends import triton
from pybeam.triton_kernels import rows


@pytest.mark.parametrize("num_moves", [1, 16, 17, 512, 513, 700])
def test_moves(device, num_moves):
    torch.manual_seed(num_moves)
    tensor = torch.randn(701, 90, device=device)[:, 3:83]
    target = torch.randperm(701)[:num_moves].int().to(device)
    source = torch.randint(0, 701, (num_moves,), dtype=torch.int32, device=device)
    expected = tensor.clone()
    expected[target.long()] = tensor[source.long()]
    triton.gather_rows([tensor], source, target)
    assert torch.equal(tensor, expected)


@pytest.mark.parametrize(
    ("dtype", "row", "start", "size"),
    [
        (torch.float64, 3, 0, 4),
        (torch.float32, 3, 1, 4),
        (torch.bfloat16, 4, 2, 4),
        (torch.bfloat16, 4, 1, 2),
        (torch.bfloat16, 3, 0, 2),
        (torch.int8, 8, 4, 4),
        (torch.bool, 3, 0, 1),
    ],
)
def test_words_are_as_wide_as_rows_allow(device, dtype, row, start, size):
    wide = (4 * torch.randn(6, 12)).to(dtype).to(device)
    tensor = wide[:, start : start + row]
    assert rows.words_of(tensor).size == size
    expected = wide.clone()
    expected[:, start : start + row] = tensor.flip(0)
    order = torch.arange(6, dtype=torch.int32, device=device)
    triton.gather_rows([tensor], order.flip(0), order)
    assert torch.equal(wide, expected)


def test_rows_that_are_not_there_are_left_out(device):
    def ints(values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    held = torch.zeros(12, 5, device=device)
    pool = held[4:8]
    pool[:] = torch.arange(4, device=device)[:, None]
    triton.gather_rows([pool], ints([1, 4, 2, -1]), ints([0, 1, 4, 2]))
    assert pool[:, 0].tolist() == [1, 1, 2, 3]
    triton.scatter_rows(pool, ints([-1, 3, 4]), torch.full((3, 5), 9.0, device=device))
    assert pool[:, 0].tolist() == [1, 1, 2, 9]
    assert not bool(held[:4].any()) and not bool(held[8:].any())


def test_backtrace_ends_whatever_it_is_given(device):
    def ints(values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    token, parent = ints([[10, 11, 12]]), ints([[1, 1, 0]])
    tokens, length = triton.backtrace(token, parent, ints([0, 0, 1, 0]), ints([1, 2, 0, 3]), 3)
    assert length.tolist() == [1, 2, 0, 0]
    assert tokens.tolist() == [[11, -1, -1], [10, 12, -1], [-1] * 3, [-1] * 3]


def test_backtrace_pads_wide_results(device):
    token = torch.arange(300, dtype=torch.int32, device=device)[None]
    node = torch.tensor([299, 0], dtype=torch.int32, device=device)
    tokens, length = triton.backtrace(token, token - 1, torch.zeros_like(node), node, 400)
    assert length.tolist() == [300, 1]
    assert tokens[0].tolist() == [*range(300), *[-1] * 100]
    assert tokens[1].tolist() == [0, *[-1] * 399]
