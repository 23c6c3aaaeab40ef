"""`ended_only`: a hypothesis that is cut at the limit is none, whatever the search, schedule or request."""

from __future__ import annotations

import dataclasses

import pytest

import pybeam
from pybeam.request import Partial
from support.laws import SOURCES, decoded
from support.search_models import random_model

MAX_LENGTH = 6
END = pybeam.stopping.end()
ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=MAX_LENGTH),
    "count": pybeam.fixed_beam(4, n_best=4, max_length=MAX_LENGTH),
    "the best": pybeam.fixed_beam(4, n_best=4, max_length=MAX_LENGTH, stop=END),
    "held": pybeam.variable_beam(4, n_best=4, max_length=MAX_LENGTH, stop=END),
    "shrinking": pybeam.shrinking_beam(4, n_best=4, max_length=MAX_LENGTH, ended_only=False),
    "optimal": pybeam.optimal_beam(4, 0.5, n_best=3, max_length=MAX_LENGTH, ended_only=False),
    "Huang": pybeam.huang_beam(4, 0.5, n_best=3, max_length=MAX_LENGTH, ended_only=False),
    "jacobi": pybeam.gauss_seidel_jacobi(3, max_length=MAX_LENGTH),
    "stochastic": pybeam.stochastic_beam(4, 5, max_length=MAX_LENGTH),
    "diverse": pybeam.diverse(pybeam.fixed_beam(3, n_best=2, max_length=MAX_LENGTH), 2, 0.5),
}
BEAMS = ("count", "the best", "held", "shrinking", "Huang")


def model_of(seed: int):
    return random_model(seed, 9, levels=[None, 3][seed % 2], eos_bonus=[0.0, -1.0, 1.0][seed % 3])


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_have_ended_and_none_that_could_be_there_is_missing(name, backend):
    """Steps and reasons are the same, and what is kept is the best of what ended, however many were cut."""
    plain = ALGORITHMS[name]
    only = dataclasses.replace(plain, ended_only=True)
    num_cut = num_empty = 0
    for seed in range(3 if backend == "native" else 1):
        both = [decoded(model_of(seed), one, pybeam.Fifo(5), backend) for one in (only, plain)]
        for ours, theirs in zip(*both, strict=True):
            assert all(h.ended for h in ours.hypotheses)
            cost = ours.stop_reason, ours.steps, ours.expansions
            assert cost == (theirs.stop_reason, theirs.steps, theirs.expansions)
            ended = [h for h in theirs.hypotheses if h.ended]
            # those that have become free for others stand behind, or, of an earlier group, between
            same = [h for h in ours.hypotheses if h in ended]
            assert same == ended and (plain.num_groups > 1 or same == ours.hypotheses[: len(ended)])
            num_cut += len(theirs.hypotheses) - len(ended)
            num_empty += not ours.hypotheses
    assert num_cut and (num_empty or plain.width > 1)


@pytest.mark.parametrize("build", [pybeam.fixed_beam, pybeam.huang_beam])
def test_what_is_cut_takes_no_place_from_what_has_ended(build):
    """A short hypothesis that ends ranks below the many that are cut, and is what is left of them."""
    scoring = pybeam.scoring.reward(5.0)
    options = dict(max_length=MAX_LENGTH, stop=END, scoring=scoring)
    model = random_model(3, 9, eos_bonus=-0.5)
    found = 0
    for width in (2, 4):
        for only in (False, True):
            algorithm = build(width, n_best=width, ended_only=only, **options)
            results = pybeam.Decoder(model, algorithm).decode(SOURCES)
            ended = [[h for h in result.hypotheses if h.ended] for result in results]
            if only:
                assert sum(map(len, ended)) > found
            found = sum(map(len, ended))


@pytest.mark.parametrize("name", BEAMS)
def test_a_request_may_say_so_for_itself(name):
    plain = ALGORITHMS[name]
    only = dataclasses.replace(plain, ended_only=True)
    requests = [
        pybeam.Request(source, [4] * (i % 3), ended_only=[None, True, False][i % 3])
        for i, source in enumerate(SOURCES)
    ]
    alone = [dataclasses.replace(request, ended_only=None) for request in requests]
    found = {
        algorithm: pybeam.Decoder(model_of(0), algorithm).decode(alone)
        for algorithm in (plain, only)
    }
    for own in (plain, only):
        results = pybeam.Decoder(model_of(0), own).decode(requests)
        for result, request in zip(results, requests, strict=True):
            asked = {None: own, True: only, False: plain}[request.ended_only]
            assert result.hypotheses == found[asked][result.index].hypotheses


@pytest.mark.parametrize("name", [*BEAMS, "optimal", "jacobi"])
def test_what_a_stream_says_beforehand_stays_true(name):
    """A `Partial` may be said of a request that comes to nothing, but never of another hypothesis."""
    only = dataclasses.replace(ALGORITHMS[name], ended_only=True)
    said = kept = 0
    for seed in range(3):
        tokens: dict[int, list[int]] = {}
        for item in pybeam.Decoder(model_of(seed), only).stream(SOURCES, partial=True):
            if isinstance(item, Partial):
                tokens[item.index] = item.tokens
                continue
            certain = tokens.get(item.index, [])
            said += len(certain)
            if item.hypotheses:
                assert item.hypotheses[0].tokens[: len(certain)] == certain
                kept += len(certain)
    assert said >= kept > 0


def test_alternatives_and_targets_are_as_ever():
    """The first step of alternatives is cut by design; only what is handed back must have ended."""
    model = random_model(2, 9, eos_bonus=0.5)
    for max_length in (1, 4):
        plain, only = (
            pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=max_length, ended_only=each))
            for each in (False, True)
        )
        for ours, theirs in zip(
            only.alternatives(SOURCES[:4], 3), plain.alternatives(SOURCES[:4], 3), strict=True
        ):
            assert [h for h in theirs.hypotheses if h.ended] == ours.hypotheses
    targets = [[4, 5]] * 4
    assert only.score(SOURCES[:4], targets) == plain.score(SOURCES[:4], targets)


def test_where_a_paper_says_so():
    on = [build(3).ended_only for build in (pybeam.optimal_beam, pybeam.huang_beam)]
    assert [*on, pybeam.shrinking_beam(3).ended_only] == [True] * 3
    recipes = [
        pybeam.compat.ctranslate2.beam_search(3),
        pybeam.compat.huggingface.beam_search(3),
        pybeam.compat.opennmt.beam_search(3),
        pybeam.compat.fireredasr.beam_search(3),
        pybeam.fixed_beam(3),
        pybeam.variable_beam(3),
        pybeam.greedy(),
    ]
    assert not any(recipe.ended_only for recipe in recipes)
