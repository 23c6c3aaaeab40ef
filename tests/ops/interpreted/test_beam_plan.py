"""Who moves: the kernel against torch, on random beams."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam.backends import torch_plan, triton
from pybeam.backends.arrays import INT_COLUMNS, NULL_SLOT, Beams

SCHEDULES = {
    "batch": pybeam.Batch(9),
    "batch, budget": pybeam.Batch(9, row_budget=12),
    "streaming": pybeam.Streaming(9),
    "streaming, impatient": pybeam.Streaming(9, max_wait=2),
    "streaming, budget": pybeam.Streaming(9, row_budget=12, max_wait=2),
    "fifo": pybeam.Fifo(9),
    "fifo, budget": pybeam.Fifo(9, row_budget=7, max_wait=1),
}


def random_beams(num_slots: int, generator: torch.Generator, device: torch.device) -> Beams:
    """Beams of which some are done; slot 0 is empty."""

    def random(high: int) -> torch.Tensor:
        return torch.randint(high, (num_slots,), generator=generator, dtype=torch.int32)

    beams = Beams.empty(torch.device("cpu")).reserved(num_slots, 1, prefix=1)
    columns = dict(reason=random(4) // 3, num_rows=random(5), depth=random(4), waited=random(4))
    for name, values in columns.items():
        beams.ints[:, INT_COLUMNS.index(name)] = values
    beams.ints[NULL_SLOT] = 0
    return Beams(*[array.to(device) for array in beams])


@pytest.mark.parametrize("num_slots", [2, 20, 300])
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("limit", [None, 0, 9, 400])
def test_as_torch(num_slots, name, limit, device):
    generator = torch.Generator().manual_seed(num_slots)
    beams = random_beams(num_slots, generator, device)
    # in any order, and with padding
    live = 1 + torch.randperm(num_slots - 1, generator=generator)
    slot = torch.cat((live, torch.zeros(5))).to(device, torch.int32)
    other = Beams(*[array.clone() for array in beams])
    rules = SCHEDULES[name].rules(limit)
    expected = torch_plan.beam_plan(beams, slot, rules)
    for ours, theirs in zip(triton.beam_plan(other, slot, rules), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(other.ints, beams.ints)
