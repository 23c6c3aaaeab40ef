"""Every algorithm, stop rule and schedule against a plain-Python search, on models that hypothesis draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from support.search_models import EOS
from support.search_problems import check, problems
from support.whole_search import Rules, Search

QUICK = settings(
    max_examples=66,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.thinned(most=1)
@QUICK
@given(problem=problems())
def test_as_in_plain_python(backend, problem):
    check(problem, backend)


@pytest.mark.slow
@settings(QUICK, max_examples=1500, derandomize=False, phases=[Phase.generate, Phase.shrink])
@given(problem=problems())
def test_as_in_plain_python_at_length(backend, problem):
    check(problem, backend)


def test_the_oracle_by_hand():
    """p(EOS) = 1/2, p(2) = p(3) = 1/4, whatever came before."""
    half, quarter = (np.float32(math.log(p)) for p in (0.5, 0.25))
    step = lambda tokens: [(EOS, half), (2, quarter), (3, quarter)]  # noqa: E731
    outcome = Search(step, Rules("refill", 3, 3, max_length=9, stop_at=3, keeps_best=False)).run([])
    assert [entry.tokens for entry in outcome.found] == [[], [2], [3]]
    assert (outcome.reason, outcome.steps, outcome.expansions) == ("width", 2, 3)
    shrinks = Search(step, Rules("shrink", 2, 2, max_length=9, stop_at=2)).run([])
    assert [entry.tokens for entry in shrinks.found] == [[], [2]]
    assert (shrinks.reason, shrinks.steps, shrinks.expansions) == ("width", 2, 2)
