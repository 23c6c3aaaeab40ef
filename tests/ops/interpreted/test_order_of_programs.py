"""The interpreter shuffles programs, so a kernel that needs them in order shows."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from support import triton_process


@triton.jit
def write_places(counter, place):
    at = tl.atomic_add(counter, 1)
    tl.store(place + at, tl.program_id(0) * 3 + tl.program_id(1))


def test_programs_run_in_a_random_order(device):
    if not triton_process.is_interpreting():
        pytest.skip("a GPU has an order of its own")
    counter = torch.zeros(1, dtype=torch.int32)
    orders = []
    for _ in range(2):
        place = torch.full((21,), -1, dtype=torch.int32)
        write_places[(7, 3)](counter.zero_(), place)
        orders.append(place.tolist())
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(21))
    assert len({*map(tuple, orders), tuple(range(21))}) == 3
