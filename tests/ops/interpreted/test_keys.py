"""The n-th largest key of a block, in a bounded number of passes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from pybeam.triton_kernels.select.keys import key_of, nth_largest
from support.select_cases import INF
from support.triton_process import is_interpreting

SIZE = 512
MOST_PASSES = 13


@triton.jit
def nth_kernel(p_value, p_index, n, p_key, p_nth, SIZE: tl.constexpr):
    o_key = tl.arange(0, SIZE)
    b_key = key_of(tl.load(p_value + o_key), tl.load(p_index + o_key))
    tl.store(p_key + o_key, b_key)
    tl.store(p_nth, nth_largest(b_key, n))


def nth(value: torch.Tensor, n: int, device: torch.device) -> tuple[list[int], int]:
    """All keys that there are, and what n of them reach."""
    # neighbours, and not from a round number on
    index = torch.randperm(SIZE, device=device).int() + 5
    key = torch.empty(SIZE, dtype=torch.int64, device=device)
    result = torch.empty(1, dtype=torch.int64, device=device)
    nth_kernel[(1,)](value.to(device), index, n, key, result, SIZE=SIZE)
    keys = sorted(set(key.tolist()) - {torch.iinfo(torch.int64).min}, reverse=True)
    return keys, result.item()


def values(kind: str) -> torch.Tensor:
    value = torch.randn(SIZE)
    if kind == "equal":
        value[:] = -1.5
    elif kind == "of two levels":
        value = (value > 1.0).float()
    elif kind == "from end to end":
        largest = torch.finfo(torch.float32).max
        value[:200], value[200:300], value[300:] = largest, value[200:300] * 1e-40, -largest
    elif kind == "far apart":
        value = torch.logspace(-44, 38, SIZE, dtype=torch.float64).float()
    elif kind == "few":
        value[torch.arange(SIZE) % 20 > 0] = -INF
        value[40] = torch.nan
    elif kind == "infinite":
        value[::7] = INF
    return value


KINDS = ("normal", "equal", "of two levels", "from end to end", "far apart", "few", "infinite")


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_keys_reach_it_after_few_passes(kind, device, monkeypatch):
    num_passes = 0
    if is_interpreting():
        from triton.runtime.interpreter import InterpreterBuilder

        count = InterpreterBuilder.create_histogram

        def counting(*arguments):
            nonlocal num_passes
            num_passes += 1
            return count(*arguments)

        monkeypatch.setattr(InterpreterBuilder, "create_histogram", counting)
    torch.manual_seed(3)
    value = values(kind)
    for n in (1, 8, 9, 25, 200, 201, SIZE - 1, SIZE):
        num_passes = 0
        keys, bound = nth(value, n, device)
        assert num_passes <= MOST_PASSES
        assert sum(key >= bound for key in keys) == min(n, len(keys))
