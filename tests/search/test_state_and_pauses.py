"""Every algorithm, with a processor that keeps state, where sources pause: the output is what it is alone."""

from __future__ import annotations

import dataclasses

import pytest

import pybeam
from pybeam import processors
from support.laws import ALGORITHMS, decoded
from support.search_models import random_model
from support.triton_process import run_in_interpreter

SEQUENCES = [[2, 3, 4, 2], [2, 3], [5, 5, 6, 2], [4], [3, 3, 3, 6], [5, 6, 4]]
GUESSING = {
    "block": pybeam.gauss_seidel_jacobi(2),
    "jacobi": pybeam.jacobi(length=5),
    "hybrid": pybeam.hybrid_jacobi(3, 5),
}
EVERY = ALGORITHMS | GUESSING
REQUESTS = [pybeam.Request([1 + i] * (1 + i % 3), id=i) for i in range(5)]


# the covering law has most of these, too
@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("name", EVERY)
def test_a_source_alone_is_as_in_the_batch(name, backend):
    algorithm = with_state(EVERY[name])
    alone = outputs(algorithm, pybeam.Batch(1), backend)
    assert all(error is None for _, error, *_ in alone)
    assert any(hypotheses for *_, hypotheses in alone)
    # some wait for rows, and others come in
    pausing = pybeam.Fifo(3, row_budget=algorithm.max_rows + 1, max_wait=1)
    assert outputs(algorithm, pausing, backend) == alone
    if backend == "triton":
        assert outputs(algorithm, pausing, "reference") == alone


@pytest.mark.slow
@pytest.mark.parametrize("share", range(3))
def test_in_the_interpreter(share):
    names = list(EVERY)[share::3]
    run_in_interpreter(*(f"{__file__}::{in_a_batch}[triton-{name}]" for name in names))


in_a_batch = test_a_source_alone_is_as_in_the_batch.__name__


def with_state(algorithm: pybeam.Algorithm) -> pybeam.Algorithm:
    # what samples stays behind what forbids
    chain = (processors.allowed_sequences(SEQUENCES), *algorithm.processors)
    return dataclasses.replace(algorithm, max_length=5, processors=chain)


def outputs(algorithm: pybeam.Algorithm, schedule: pybeam.Schedule, backend: str) -> list[tuple]:
    results = decoded(random_model(5, eos_bonus=-1.0), algorithm, schedule, backend, REQUESTS)
    found = [(r.index, r.error, r.stop_reason, r.hypotheses) for r in results]
    if backend == "native":
        return found
    # the place of a row in a batch may change the last bits of its scores
    return [(*facts, [(h.tokens, h.ended) for h in hypotheses]) for *facts, hypotheses in found]
