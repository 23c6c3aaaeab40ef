"""`Hypothesis.final_score` is the number that the device has ranked by."""

from __future__ import annotations

import dataclasses

import pytest

import pybeam
from pybeam import scoring
from support.laws import SOURCES, decoded
from support.search_models import random_model

ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=7),
    "blocks": pybeam.gauss_seidel_jacobi(3, max_length=7),
    "fixed": pybeam.fixed_beam(3, n_best=3, max_length=7),
    "held": pybeam.variable_beam(3, n_best=3, max_length=7),
    "end": pybeam.fixed_beam(3, n_best=3, max_length=7, stop=pybeam.stopping.end()),
    "samples": pybeam.stochastic_beam(3, max_length=7),
}
SCORINGS = {
    "raw": scoring.raw(),
    "power": scoring.power(0.7),
    "negative power": scoring.power(-1.3),
    "GNMT": scoring.gnmt(1.1),
    "reward": scoring.reward(0.4),
    "bounded reward": scoring.reward(0.4, 1.5),
    "cut": scoring.CutScoring(alpha=1.2, offset=5.0, scale=6.0, reward=0.1),
}


@pytest.mark.thinned(most=12)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("rule", SCORINGS)
def test_as_the_formula(name, rule, backend):
    """In float64, from the score that was accumulated; and hypotheses stand in its order."""
    algorithm = ALGORITHMS[name]
    if algorithm.perturbs and rule != "raw":
        pytest.skip("samples are ranked by their perturbed log-probability alone")
    rule = SCORINGS[rule]
    algorithm = dataclasses.replace(algorithm, scoring=rule)
    num_cut = 0
    for seed in (3, 4):
        model = random_model(seed, 9, levels=(None, 3)[seed % 2], eos_bonus=seed - 3.5)
        for result in decoded(model, algorithm, pybeam.Fifo(3), backend, SOURCES[:6]):
            finals = [h.final_score for h in result.hypotheses]
            assert finals == sorted(finals, reverse=True)
            for h in result.hypotheses:
                num_cut += not h.ended
                if algorithm.perturbs:
                    continue
                n, size = len(h.tokens) + h.ended, len(SOURCES[result.index])
                final = rule.final_score(h.score, n, size, has_ended=h.ended)
                # alpha and reward are float32 on the device
                assert h.final_score == pytest.approx(final, rel=1e-6, abs=1e-6)
    assert num_cut
