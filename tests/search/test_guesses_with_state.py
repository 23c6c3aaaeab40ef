"""Guesses, processors that keep state, and sources that pause: the output is still that of greedy decoding.

Sources without a row in a step are null slots of that step. Memory that nobody wrote for them has no effect.
"""

from __future__ import annotations

import pytest

import pybeam
from pybeam import drafts, processors
from pybeam.catalogue import allowed_items
from support.laws import decoded
from support.search_models import random_model
from support.triton_process import run_in_interpreter

GUESSING = {
    "block": lambda **options: pybeam.gauss_seidel_jacobi(2, **options),
    "jacobi": lambda **options: pybeam.jacobi(length=5, **options),
    "hybrid": lambda **options: pybeam.hybrid_jacobi(3, 5, **options),
    "adaptive": lambda **options: pybeam.adaptive_jacobi(4, initialiser=drafts.pad(), **options),
}
SEQUENCES = [[2, 3, 4, 2], [2, 3], [5, 5, 6, 2, 2, 3], [4], [3, 3, 3, 3, 6], [5, 6, 4, 4, 4]]
CHAINS = {
    "sequences": [processors.allowed_sequences(SEQUENCES)],
    "items": [allowed_items(pybeam.Catalogue.build(SEQUENCES))],
    "items, renormalised": [allowed_items(pybeam.Catalogue.build(SEQUENCES), renormalize=True)],
    "several": [
        processors.temperature(0.7),
        processors.allowed_sequences(SEQUENCES),
        allowed_items(pybeam.Catalogue.build(SEQUENCES)),
    ],
}
# some sources wait in some steps, and others come in; and whether the host reads late
PAUSING = [
    (pybeam.Fifo(5, row_budget=9), False),
    (pybeam.Streaming(4), True),
    (pybeam.Streaming(4, row_budget=7, max_wait=3), True),
]
REQUESTS = [pybeam.Request([1 + i] * (1 + i % 4), id=i) for i in range(8)]


def outputs(algorithm, schedule, backend, **options):
    model = random_model(5, eos_bonus=-1.0)
    results = decoded(model, algorithm, schedule, backend, REQUESTS, **options)
    found = [(r.index, r.error, r.stop_reason, r.hypotheses) for r in results]
    if backend != "triton":
        return found
    # there the last bits of a score depend on the batch
    return [(*facts, [(h.tokens, h.ended) for h in hypotheses]) for *facts, hypotheses in found]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("name", GUESSING)
def test_waiting_changes_nothing(name, chain, backend):
    options = dict(max_length=8, processors=CHAINS[chain])
    greedy = outputs(pybeam.greedy(**options), pybeam.Batch(1), backend)
    assert all(error is None and hypotheses for _, error, _, hypotheses in greedy)
    for schedule, late in PAUSING:
        found = outputs(GUESSING[name](**options), schedule, backend, reads_late=late)
        assert found == greedy, (schedule, late)


@pytest.mark.slow
def test_waiting_changes_nothing_on_triton():
    run_in_interpreter(__file__, "-k", "triton-block-sequences")
