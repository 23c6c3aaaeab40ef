"""The largest keys of a block: the right ones, in a bounded number of passes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from pybeam.triton_kernels.select.keys import keep_largest, key_of
from support.select_cases import INF
from support.triton_process import is_interpreting

SIZE = 512
MOST_PASSES = 13


@triton.jit
def keep_kernel(p_value, p_index, n, p_key, p_kept, p_result, SIZE: tl.constexpr):
    o_key = tl.arange(0, SIZE)
    b_key = key_of(tl.load(p_value + o_key), tl.load(p_index + o_key))
    tl.store(p_key + o_key, b_key)
    num_kept, bound = keep_largest(b_key, n, p_kept)
    tl.store(p_result, num_kept.to(tl.int64))
    tl.store(p_result + 1, bound)


def kept(value: torch.Tensor, n: int, device: torch.device) -> tuple[list[int], list[int], int]:
    """All keys that there are, those that are kept, and the bound."""
    # neighbours, and not from a round number on
    index = torch.randperm(SIZE, device=device).int() + 5
    key, out = torch.empty(2, SIZE, dtype=torch.int64, device=device)
    result = torch.empty(2, dtype=torch.int64, device=device)
    keep_kernel[(1,)](value.to(device), index, n, key, out, result, SIZE=SIZE)
    num_kept, bound = result.tolist()
    keys = sorted(set(key.tolist()) - {torch.iinfo(torch.int64).min}, reverse=True)
    return keys, sorted(out[:num_kept].tolist(), reverse=True), bound


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
def test_the_largest_are_kept_in_few_passes(kind, device, monkeypatch):
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
        keys, found, bound = kept(value, n, device)
        assert found == keys[:n]
        assert num_passes <= MOST_PASSES
        # no other key is above the bound, and every key that is kept reaches it
        assert len(found) < n or keys[n - 1] >= bound
        assert all(key < bound for key in keys[n:])
