"""Results do not depend on schedule, batch, row budget or backend; switches that are off change nothing."""

import itertools
import math

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine.workspace import Workspace
from support.laws import ALGORITHMS, decoded, essence, shares, some_schedules
from support.search_models import random_model


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("levels", [None, 3], ids=["", "ties"])
@pytest.mark.parametrize("sixth", shares(2))
def test_results_do_not_depend_on_the_schedule(backend, name, levels, sixth):
    """Nor on when the host reads. Late, rows are padded, and what is done is noticed a step later.

    `tests/law` has few short sources; here are many that come and go, under a third of the schedules.
    """
    model = random_model(7, levels=levels, eos_bonus=0.5)
    algorithm = ALGORITHMS[name]
    expected = essence(decoded(model, algorithm, pybeam.Batch(1), backend))
    assert any(len(hypotheses) > 0 for _, hypotheses, *_ in expected)
    workspace = Workspace(model, algorithm, backends.load(backend))
    for schedule in some_schedules(name, sixth, num=6):
        assert essence(decoded(model, algorithm, schedule, backend)) == expected, schedule
        late = decoded(model, algorithm, schedule, backend, workspace=workspace, reads_late=True)
        assert essence(late) == expected, schedule


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("levels", [None, 3], ids=["", "ties"])
def test_pruning_off_is_fixed_ours(backend, levels):
    model = random_model(3, levels=levels)
    plain = pybeam.variable_beam(4, n_best=4, max_length=10)
    off = pybeam.variable_beam(
        4, threshold=math.inf, max_candidates=7, local_threshold=math.inf, n_best=4, max_length=10
    )
    beyond = pybeam.variable_beam(4, max_candidates=1000, n_best=4, max_length=10)
    expected = essence(decoded(model, plain, pybeam.Batch(4), backend))
    assert essence(decoded(model, off, pybeam.Batch(4), backend)) == expected
    assert essence(decoded(model, beyond, pybeam.Batch(4), backend)) == expected


def test_results_do_not_depend_on_a_vocabulary_split(backend):
    """Slices of the vocabulary, merged by logit and by log-sum-exp, give what the whole row gives."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(3, 1000, generator=generator) * 4).round() / 4
    offset = torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    width = torch.full((3,), 20, dtype=torch.int32)

    def best(columns):
        return pybeam.ops.select(columns, torch.zeros(3), offset, width=width, backend=backend)

    whole = best(logits)
    cuts = [0, 1, 130, 640, 1000]
    parts = [(low, best(logits[:, low:high])) for low, high in itertools.pairwise(cuts)]
    for r in range(3):
        total = logits[r].logsumexp(0)
        found = []
        for (low, part), high in zip(parts, cuts[1:], strict=True):
            n = int(part.count[r])
            share = logits[r, low:high].logsumexp(0) - total
            for token, log_prob in zip(part.token[r, :n] + low, part.log_prob[r, :n], strict=True):
                found.append((-logits[r, token].item(), int(token), float(log_prob + share)))
        found.sort()
        assert [token for _, token, _ in found[:20]] == whole.token[r].tolist()
        assert [log_prob for *_, log_prob in found[:20]] == pytest.approx(
            whole.log_prob[r].tolist(), abs=1e-5
        )


@pytest.mark.thinned(most=1)
def test_width_one_is_greedy(backend):
    model = random_model(5, eos_bonus=0.3)
    greedy = decoded(model, pybeam.greedy(max_length=20), pybeam.Batch(8), backend)
    for build in (pybeam.fixed_beam, pybeam.variable_beam, pybeam.shrinking_beam):
        algorithm = build(1, max_length=20, ended_only=False)
        other = decoded(model, algorithm, pybeam.Batch(8), backend)
        assert [r.hypotheses for r in other] == [r.hypotheses for r in greedy]


@pytest.mark.thinned(most=1)
def test_max_candidates_one_is_greedy(backend):
    model = random_model(5, eos_bonus=0.3)
    greedy = decoded(model, pybeam.greedy(max_length=20), pybeam.Batch(8), backend)
    one = decoded(
        model, pybeam.variable_beam(5, max_candidates=1, max_length=20), pybeam.Batch(8), backend
    )
    assert [r.hypotheses for r in one] == [r.hypotheses for r in greedy]
