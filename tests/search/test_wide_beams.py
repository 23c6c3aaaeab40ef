"""Whole searches with more than 128 rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pybeam
from pybeam.contracts import MASK_WIDTH
from pybeam.models import FunctionModel
from support.laws import decoded, essence
from support.search_models import EOS, random_model
from support.search_oracles import Found, ranked_log_probs
from support.whole_search import Rules, Search

BUILDERS = [pybeam.fixed_beam, pybeam.variable_beam]


def ends_behind(length: int, model: FunctionModel) -> FunctionModel:
    """The same model, but all its outputs have that many tokens."""
    inner, is_eos = model.fn, torch.arange(model.vocab_size) == EOS

    def logits(prefixes, lengths, source_ids):
        is_last = lengths == length + 1
        found = inner(prefixes, lengths, source_ids)
        return found.masked_fill(is_last[:, None] != is_eos, -torch.inf)

    model.fn = logits
    return model


def every_one(step, max_length: int) -> list[tuple[list[int], float]]:
    """All outputs of a model that ends at that length: a beam search without a width."""
    beam = [Found([], np.float32(0), 0, False)]
    for length in range(1, max_length + 1):
        candidates = [
            Found([*row.tokens, token], np.float32(row.score + log_prob), length, token == EOS)
            for row in beam
            for token, log_prob in step(row.tokens)
        ]
        beam = sorted(candidates, key=lambda found: -found.score)  # stable
    return [(found.tokens[:-1], float(found.score)) for found in beam]


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("levels", [None, 2], ids=["", "ties"])
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(
    "widths", [125, [5, 25, 125], [5, 25, 127, 125], [5, 25, 300, 125], 200], ids=str
)
def test_wide_enough_at_every_step_is_exhaustive(backend, build, widths, levels):
    """With a place for every prefix all 125 outputs come, best first, ties as at every step of the way."""
    model = ends_behind(3, random_model(3, 6, levels=levels))
    expected = every_one(ranked_log_probs(model, 0, backend), 4)
    assert len(expected) == 125
    algorithm = build(widths, n_best=125, max_length=4)
    (result,) = pybeam.Decoder(model, algorithm, backend=backend).decode([[1]])
    assert [(h.tokens, h.score) for h in result.hypotheses] == expected


@pytest.mark.thinned(most=1)
def test_the_widest_beam_returns_everything(backend):
    """1,296 outputs of four tokens each, which are all there are."""
    if backend == "reference":
        pytest.skip("the reference takes a minute for it")
    model = ends_behind(4, random_model(5, 7))
    expected = every_one(ranked_log_probs(model, 0, backend), 5)
    assert len(expected) == 6**4
    algorithm = pybeam.fixed_beam(4096, n_best=4096, max_length=5)
    (result,) = pybeam.Decoder(model, algorithm, backend=backend).decode([[1]])
    assert [(h.tokens, h.score) for h in result.hypotheses] == expected
    assert result.stop_reason == "empty_beam"


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("finishing", ["refill", "held"])
@pytest.mark.parametrize("widths", [[150], [3, 140, 40], [200, 20]], ids=str)
def test_as_in_plain_python(backend, finishing, widths):
    model = random_model(7, 12, eos_bonus=1.0, levels=8)
    build = dict(zip(("refill", "held"), BUILDERS, strict=True))[finishing]
    *early, last = widths
    step = ranked_log_probs(model, 0, backend)
    rules = Rules(
        finishing,
        last,
        20,
        max_length=5,
        stop_at=20 if finishing == "held" else last,
        keeps_best=False,
        early_widths=tuple(early),
    )
    expected = Search(step, rules).run([])
    (result,) = pybeam.Decoder(
        model, build(widths, n_best=20, max_length=5), backend=backend
    ).decode([[1]])
    cost = (result.stop_reason, result.steps, result.expansions)
    assert cost == (expected.reason, expected.steps, expected.expansions)
    ours = [(h.tokens, h.score) for h in result.hypotheses]
    assert ours == [(entry.tokens, float(entry.score)) for entry in expected.found]


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("build", BUILDERS)
def test_places_that_nobody_takes_change_nothing(backend, build):
    """A margin keeps fewer than 128 alive, so 128 places and 600 give the same."""
    model = random_model(11, 7, eos_bonus=0.5)
    stop = pybeam.stopping.end()
    narrow, wide = (
        decoded(
            model,
            build(width, n_best=9, max_length=8, stop=stop),
            pybeam.Fifo(3),
            backend,
            [pybeam.Request([1] * n, threshold=1.5) for n in (1, 2, 3, 1)],
        )
        for width in (MASK_WIDTH, 600)
    )
    assert max(result.expansions / result.steps for result in narrow) < MASK_WIDTH
    assert essence(wide) == essence(narrow)


@pytest.mark.thinned(most=1)
def test_wide_and_narrow_requests_side_by_side(backend):
    """A wide request makes the whole tree change its representation, and no result."""
    model = random_model(13, 9, eos_bonus=0.5)
    requests = [pybeam.Request([1], width=w, max_length=4) for w in (3, 150, [2, 140, 9], 30)]
    algorithm = pybeam.fixed_beam(5, max_length=6)
    together = decoded(model, algorithm, pybeam.Fifo(2), backend, requests)
    alone = decoded(model, algorithm, pybeam.Batch(1), backend, requests[:1])
    assert essence(together)[:1] == essence(alone)
    for schedule in (pybeam.Batch(1), pybeam.Fifo(5, row_budget=150)):
        late = schedule.row_budget is not None
        again = decoded(model, algorithm, schedule, backend, requests, reads_late=late)
        assert essence(again) == essence(together)


@pytest.mark.thinned(most=1)
def test_many_samples_are_drawn_as_few_are(backend):
    """A wider beam draws those of a narrower one first."""
    model = random_model(2, 6, eos_bonus=0.3)
    many, few = (
        pybeam.Decoder(
            model, pybeam.stochastic_beam(width, seed=4, max_length=6), backend=backend
        ).decode([[1]])[0]
        for width in (160, 100)
    )
    tokens = [(h.tokens, h.ended) for h in many.hypotheses]
    assert len(tokens) == 160 and len({(*t, ended) for t, ended in tokens}) == 160
    assert tokens[:100] == [(h.tokens, h.ended) for h in few.hypotheses]


@pytest.mark.thinned(most=1)
def test_groups_targets_and_prefixes_of_wide_beams(backend):
    """Groups, prefixes, targets and forced ends go with wide beams, too."""
    model = random_model(17, 8, eos_bonus=0.5)
    wide = pybeam.fixed_beam(140, n_best=3, max_length=4)
    decoder = pybeam.Decoder(model, pybeam.diverse(wide, 2, 0.6), backend=backend)
    (result,) = decoder.decode([[1]])
    assert len(result.hypotheses) == 6 and result.stop_reason == "groups"
    decoder = pybeam.Decoder(model, wide, backend=backend)
    (found,) = decoder.decode([pybeam.Request([1], prefix=[3, 4])])
    best = found.hypotheses[0]
    assert best.tokens[:2] == [3, 4]
    (scored,) = decoder.decode([pybeam.Request([1], prefix=[3, 4], target=best.tokens[2:])])
    if best.ended:
        assert scored.hypotheses[0].score == best.score
    forced = pybeam.processors.force_eos()
    (ended,) = pybeam.Decoder(
        model,
        pybeam.fixed_beam(140, n_best=140, max_length=3, processors=[forced]),
        backend=backend,
    ).decode([[1]])
    assert all(h.ended for h in ended.hypotheses)
