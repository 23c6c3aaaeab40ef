"""Beams of up to 4,096 rows, in searches: against all outputs that there are, and beside narrow ones."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.engine.workspace import Workspace
from pybeam.models import load_model
from support.front_ends import sources
from support.laws import decoded, essence
from support.search_models import EOS, next_logits, random_model
from support.tiny_models import save_tiny_model


def every_output(model, vocab_size: int, max_length: int) -> list[tuple[float, list[int]]]:
    """Score and tokens of every output of source 0, best first."""
    outputs, open_ones = [], [(0.0, [])]
    for _ in range(max_length):
        longer = []
        for score, tokens in open_ones:
            log_probs = torch.log_softmax(next_logits(model, 0, tokens).double(), 0).tolist()
            outputs.append((score + log_probs[EOS], tokens))
            others = [token for token in range(vocab_size) if token != EOS]
            longer += [(score + log_probs[token], [*tokens, token]) for token in others]
        open_ones = longer
    return sorted(outputs + open_ones, key=lambda output: -output[0])


@pytest.mark.parametrize("width", [512, 4096])
def test_a_beam_that_has_room_for_all_finds_all(backend, width):
    """No hypothesis is ever dropped, so that the n-best list is that of an exhaustive search."""
    vocab_size, max_length = (6, 3) if width == 512 else (8, 4)
    model = random_model(5, vocab_size)
    expected = every_output(model, vocab_size, max_length)
    assert len(expected) < width
    algorithm = pybeam.fixed_beam(width, n_best=len(expected), max_length=max_length)
    work = Workspace(model, algorithm, backends.load(backend))
    (result,) = decoded(model, algorithm, pybeam.Batch(1), backend, [[1]], workspace=work)
    assert work.tree.has_paths
    assert int(work.tree.num_free_pages) == work.tree.num_total_pages
    assert [h.score for h in result.hypotheses] == pytest.approx([s for s, _ in expected], abs=1e-4)
    assert {tuple(h.tokens) for h in result.hypotheses} == {tuple(t) for _, t in expected}


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("m2m_100")
    save_tiny_model(directory, "m2m_100")
    return load_model(directory, device="cpu")


@pytest.mark.parametrize(
    "algorithm",
    [
        pybeam.fixed_beam(300, n_best=300, max_length=4),
        pybeam.variable_beam(300, threshold=6.0, n_best=100, max_length=5),
        pybeam.shrinking_beam(300, n_best=50, max_length=4),
        pybeam.optimal_beam(300, n_best=9, max_length=4),
        pybeam.stochastic_beam(200, seed=3, max_length=3),
    ],
    ids=["fixed", "variable", "shrinking", "optimal", "stochastic"],
)
def test_backends_agree(transformer, algorithm):
    """On tokens, but for neighbours whose scores are as good as equal."""
    requests = sources(2)
    ours, theirs = (
        decoded(transformer, algorithm, pybeam.Fifo(2), name, requests)
        for name in ("native", "reference")
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.error is None and len(one.hypotheses) == len(other.hypotheses) > 1
        scores = [h.score for h in other.hypotheses]
        assert [h.score for h in one.hypotheses] == pytest.approx(scores, abs=2e-4)
        common = {tuple(h.tokens) for h in one.hypotheses} & {
            tuple(h.tokens) for h in other.hypotheses
        }
        assert len(common) >= 0.98 * len(scores)


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
    alone = decoded(transformer, algorithm, pybeam.Batch(1), backend, requests)
    if backend == "native":
        assert essence(together) == essence(alone)
    else:
        for one, other in zip(together, alone, strict=True):
            assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]


def test_partial_results_and_targets(transformer, backend):
    """What is certain grows, and a target is scored beside a wide beam."""
    algorithm = pybeam.fixed_beam(150, n_best=2, max_length=4)
    requests = [pybeam.Request(source) for source in sources(3)]
    requests[1] = pybeam.Request(sources(3)[1], target=[4, 9, 5])
    requests[2] = pybeam.Request(sources(3)[2], prefix=[7])
    found = decoded(transformer, algorithm, pybeam.Fifo(3), backend, requests)
    assert [result.error for result in found] == [None] * 3
    assert list(found[1].hypotheses[0].tokens) == [4, 9, 5]
    assert all(h.tokens[0] == 7 for h in found[2].hypotheses)
