"""Tokens of a prefix that are taken at once leave every array as so many steps would."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.state.beam_state import BeamState
from pybeam.state.new_beam import NewBeam
from pybeam.state.step import StepPlan
from support.beam_arrays import CPU, EOS, START, VOCAB, in_use, ints

PREFIX = [3, 4, 5, 6, 7]
# tokens that are read at once, by slot
COUNTS = {1: 2, 2: 4, 3: 3}
ALGORITHMS = {
    "refill": pybeam.fixed_beam(2, max_length=9),
    "held": pybeam.variable_beam(3, threshold=2.0, max_length=9),
    "the best": pybeam.optimal_beam(2, 0.5, 1.5, max_length=9),
    "paths": pybeam.fixed_beam(40, max_length=9),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_as_after_so_many_steps(name, backend):
    algorithm, states = ALGORITHMS[name], []
    beams = [
        NewBeam(slot=slot, algorithm=algorithm, source_length=1, prefix=PREFIX, num_read=num)
        for slot, num in COUNTS.items()
    ]
    for _ in range(2):
        state = BeamState(algorithm, (EOS,), backends.load(backend), CPU)
        state.reserve(1 + len(beams), algorithm.max_width, 16)
        state.tree.reserve_pages(9 * algorithm.max_width)
        state.open(beams, START)
        states.append(state)
    at_once, in_steps = states
    list(at_once.read_ahead(beams, START))
    for i in range(max(COUNTS.values())):
        slot = ints([slot for slot in (2, 3, 1) if COUNTS[slot] > i])
        step = in_steps.begin(StepPlan(slot, len(slot), 16))
        step.choose(torch.randn(len(slot), VOCAB))
        step.commit(slot)
    assert in_use(at_once) == in_use(in_steps)
