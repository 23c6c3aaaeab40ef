"""`Request.start`: what a model that starts from another token finds."""

from __future__ import annotations

import pytest

import pybeam
from pybeam.models import FunctionModel
from support.laws import ALGORITHMS, SOURCES, decoded, schedules
from support.search_models import EOS, random_model

V = 9
OTHER = 5


def models():
    """A model, and the same with another start token."""
    model = random_model(3, V, eos_bonus=0.4)
    return model, FunctionModel(model.fn, V, OTHER, EOS)


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ["fixed", "variable", "adaptive", "stochastic"])
def test_results_are_those_of_another_start_token(backend, name):
    """Beside requests that start as usual, with every schedule; also for those with a prefix."""
    model, other = models()
    algorithm = ALGORITHMS[name]
    requests = [
        pybeam.Request(source, start=OTHER if i % 2 else None, prefix=[3, 4][: i % 3])
        for i, source in enumerate(SOURCES)
    ]
    plain = [pybeam.Request(one.source, prefix=one.prefix) for one in requests]
    usual, changed = (
        decoded(one, algorithm, pybeam.Fifo(4), backend, plain) for one in (model, other)
    )
    expected = [(changed if i % 2 else usual)[i].hypotheses for i in range(len(requests))]
    assert [r.hypotheses for r in usual] != [r.hypotheses for r in changed]
    for schedule in schedules(algorithm.max_rows).values():
        found = decoded(model, algorithm, schedule, backend, requests)
        assert [result.hypotheses for result in found] == expected


def test_targets_are_scored_behind_it():
    model, other = models()
    requests = [pybeam.Request([1], start=OTHER, source_id=0, prefix=[2]) for _ in range(2)]
    targets = [[3, 4], [6]]
    found = pybeam.Decoder(model, pybeam.greedy()).score(requests, targets)
    plain = [pybeam.Request([1], source_id=0, prefix=[2]) for _ in range(2)]
    expected = pybeam.Decoder(other, pybeam.greedy()).score(plain, targets)
    assert [r.hypotheses for r in found] == [r.hypotheses for r in expected]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (V, "`start` must be 0 to 8, but is 9"),
        (-1, "`start` must be 0 to 8"),
        ("a", "`start` must be an"),
    ],
)
def test_what_is_no_token(start, message):
    model, _ = models()
    decoder = pybeam.Decoder(model, pybeam.greedy())
    [bad, good] = decoder.decode([pybeam.Request([1], start=start), [1]], on_error="return")
    assert message in str(bad.error) and good.error is None
