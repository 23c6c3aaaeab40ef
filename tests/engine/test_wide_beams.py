"""Wide beams of a transformer, whose rows have paths: as the reference, and beside narrow ones."""

from __future__ import annotations

import pytest

import pybeam
from pybeam import backends
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from support.front_ends import sources
from support.laws import decoded, essence
from support.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("m2m_100")
    save_tiny_model(directory, "m2m_100")
    return load_model(directory, device="cpu")


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    "algorithm",
    [
        pybeam.fixed_beam(140, n_best=140, max_length=4),
        pybeam.variable_beam(140, threshold=6.0, n_best=100, max_length=4),
        pybeam.shrinking_beam(140, n_best=50, max_length=4),
        pybeam.optimal_beam(140, n_best=9, max_length=4),
        pybeam.stochastic_beam(140, seed=3, max_length=3),
    ],
    ids=["fixed", "variable", "shrinking", "optimal", "stochastic"],
)
def test_backends_agree(transformer, algorithm):
    """On tokens, but for neighbours whose scores are as good as equal."""
    requests = sources(1)
    ours, theirs = (
        decoded(transformer, algorithm, pybeam.Fifo(2), name, requests)
        for name in ("native", "reference")
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.error is None and len(one.hypotheses) == len(other.hypotheses) > 0
        # samples are ranked by perturbed scores
        scores = sorted(h.score for h in other.hypotheses)
        assert sorted(h.score for h in one.hypotheses) == pytest.approx(scores, abs=2e-4)
        common = {tuple(h.tokens) for h in one.hypotheses} & {
            tuple(h.tokens) for h in other.hypotheses
        }
        assert len(common) >= 0.98 * len(scores)


@pytest.mark.slow
def test_a_wide_request_among_narrow_ones(transformer, backend):
    """Masks become paths while other sources are on their way; results stay as they are, to the last bit."""
    if backend == "triton":
        pytest.skip("a GPU is not asked for bits")
    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=12)
    requests = [pybeam.Request(source) for source in sources(5)]
    requests[3] = pybeam.Request(sources(5)[3], width=200, n_best=150, max_length=3)
    work = Workspace(transformer, algorithm, backends.load(backend))
    together = decoded(transformer, algorithm, pybeam.Fifo(2), backend, requests, workspace=work)
    assert work.tree.has_paths
    assert int(work.tree.num_free_pages) == work.tree.num_total_pages
    alone = decoded(transformer, algorithm, pybeam.Batch(1), backend, requests)
    if backend == "native":
        assert essence(together) == essence(alone)
    else:
        for one, other in zip(together, alone, strict=True):
            assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]


@pytest.mark.slow
def test_partial_results_and_targets(transformer, backend):
    """The certain part grows, and a target is scored beside a wide beam."""
    algorithm = pybeam.fixed_beam(150, n_best=2, max_length=4)
    requests = [pybeam.Request(source) for source in sources(3)]
    requests[1] = pybeam.Request(sources(3)[1], target=[4, 9, 5])
    requests[2] = pybeam.Request(sources(3)[2], prefix=[7])
    found = decoded(transformer, algorithm, pybeam.Fifo(3), backend, requests)
    assert [result.error for result in found] == [None] * 3
    assert list(found[1].hypotheses[0].tokens) == [4, 9, 5]
    assert all(h.tokens[0] == 7 for h in found[2].hypotheses)
