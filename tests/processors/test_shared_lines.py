"""Large parameters of processors that requests share: whoever uses which, everybody sees the right one."""

from __future__ import annotations

import random

import torch

from pybeam.processors.shared import SharedLines


def test_a_slot_sees_its_tensor_until_it_is_opened_again():
    rng, num_slots = random.Random(7), 6
    tensors = [torch.full((3,), i) for i in range(9)]
    shared = SharedLines(tensors[0], torch.device("cpu"))
    shared.line = torch.zeros(num_slots, dtype=torch.int32)
    own = {}
    for _ in range(200):
        slots = rng.sample(range(num_slots), rng.randint(1, num_slots))
        given = [rng.choice(tensors) for _ in slots]
        shared.open(slots, given)
        own |= dict(zip(slots, given, strict=True))
        for slot, tensor in own.items():
            assert shared.table[shared.line[slot]].equal(tensor)
        # line 0 is the algorithm's; a slot that is opened gives its own line back first
        assert shared.table[0].equal(tensors[0])
        assert shared.line.max() <= num_slots
    used = {id(tensor) for tensor in own.values()} - {id(tensors[0])}
    assert len(set(shared.line.tolist()) - {0}) == len(used)
