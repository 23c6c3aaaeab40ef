"""The interpreter shuffles programs, so a kernel that needs them in order shows; threads take turns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

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


@triton.jit
def double(x):
    place = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(x + place, 2 * tl.load(x + place))


def test_threads_launch_at_once(device):
    """As the engines of a service do."""
    numbers = [torch.arange(80, device=device) for _ in range(4)]

    def work(own: torch.Tensor) -> None:
        for _ in range(5):
            double[(20,)](own)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, numbers))
    for own in numbers:
        assert own.tolist() == [32 * i for i in range(80)]
