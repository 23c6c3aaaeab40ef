"""A width for each of the first steps. `test_search_differential.py` compares it with plain Python."""

from __future__ import annotations

import itertools

import pytest

import pybeam
from pybeam.limits import PrefixRule
from pybeam.models import FunctionModel
from support.laws import SOURCES, decoded, essence
from support.search_models import random_model

BUILDERS = {
    "fixed": lambda width, **more: pybeam.fixed_beam(width, **more),
    "variable": lambda width, **more: pybeam.variable_beam(width, threshold=3.0, **more),
    "optimal": lambda width, **more: pybeam.optimal_beam(width, 0.5, 1.5, **more),
    "to the end": lambda width, **more: pybeam.variable_beam(
        width, stop=pybeam.stopping.end(), **more
    ),
}
BY_STEP = {name: build([2, 7, 4], n_best=4, max_length=9) for name, build in BUILDERS.items()}


@pytest.fixture
def model() -> FunctionModel:
    return random_model(5, eos_bonus=0.7)


def results_of(model: FunctionModel, algorithm, backend: str, requests=SOURCES, **more) -> list:
    return essence(decoded(model, algorithm, pybeam.Fifo(5), backend, requests, **more))


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("name", BUILDERS)
def test_equal_widths_are_one_width(backend, model, name):
    build = BUILDERS[name]
    one = results_of(model, build(4, n_best=4, max_length=9), backend)
    for widths in ([4], (4, 4), [4] * 12):
        algorithm = build(widths, n_best=4, max_length=9)
        assert results_of(model, algorithm, backend) == one


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("name", BUILDERS)
def test_what_holds_at_last_holds_beyond_the_list(backend, model, name):
    build = BUILDERS[name]
    short = results_of(model, build([2, 7, 4], n_best=4, max_length=9), backend)
    long = results_of(model, build([2, 7, *[4] * 30], n_best=4, max_length=9), backend)
    assert short == long


def test_rows_of_every_step(backend):
    """A model that never ends: the rows of step t + 1 are the places after step t."""
    model = random_model(1, 9, eos_bonus=-99.0)
    for build in (pybeam.fixed_beam, pybeam.variable_beam):
        for length, expansions in enumerate([1, 4, 6, 11, 16], start=1):
            algorithm = build([3, 2, 5], max_length=length)
            (result,) = pybeam.Decoder(model, algorithm, backend=backend).decode([[1]])
            assert (result.steps, result.expansions) == (length, expansions)


@pytest.mark.slow
@pytest.mark.thinned(most=1)
def test_a_request_has_its_own_widths(backend, model):
    """Whatever the algorithm's widths are, those of a request take their place."""
    for name, own in itertools.product(BUILDERS, (3, [3, 6], (1, 2, 8, 4))):
        build = BUILDERS[name]
        expected = results_of(model, build(own, max_length=9), backend)
        requests = [pybeam.Request(source, width=own) for source in SOURCES]
        for base in (5, [2, 7, 4]):
            algorithm = build(base, max_length=9)
            assert results_of(model, algorithm, backend, requests) == expected


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("rule", [PrefixRule(), PrefixRule(is_scored=True, in_length=True)])
def test_steps_are_counted_behind_the_prefix(backend, rule):
    """The prefix is one row, however long it is."""
    model = random_model(1, 9, eos_bonus=-99.0)
    for build in (pybeam.fixed_beam, pybeam.variable_beam):
        algorithm = build([3, 2, 5], max_length=4, prefix=rule)
        decoder = pybeam.Decoder(model, algorithm, backend=backend)
        for num in (0, 1, 3):
            (result,) = decoder.decode([pybeam.Request([1], prefix=[4, 5, 6][:num])])
            assert (result.steps, result.expansions) == (4 + num, 11 + num)


def test_a_target_has_one_row(backend, model):
    decoder = pybeam.Decoder(model, BY_STEP["fixed"], backend=backend)
    plain = pybeam.Decoder(model, pybeam.fixed_beam(3), backend=backend)
    assert decoder.score([[1]], [[2, 3]]) == plain.score([[1]], [[2, 3]])


def test_alternatives_go_on_with_the_widths(backend, model):
    decoder = pybeam.Decoder(model, pybeam.fixed_beam([2, 6], max_length=6), backend=backend)
    (result,) = decoder.alternatives([pybeam.Request([1])], num=3)
    for hypothesis in result.hypotheses:
        request = pybeam.Request([1], prefix=hypothesis.tokens[:1], max_length=5)
        (expected,) = decoder.decode([request])
        assert expected.hypotheses[0].tokens == hypothesis.tokens


@pytest.mark.thinned(most=1)
def test_groups_have_widths_by_step(backend, model):
    algorithms = [
        pybeam.diverse(pybeam.fixed_beam(width, n_best=2, max_length=6), 3, 0.7)
        for width in ([3, 3], 3, [1, 5, 3])
    ]
    equal, one, other = (results_of(model, algorithm, backend) for algorithm in algorithms)
    assert equal == one != other


REFUSED = {
    "shrinking": lambda: pybeam.shrinking_beam([2, 3]),
    "huang": lambda: pybeam.huang_beam([2, 3]),
    "stochastic": lambda: pybeam.stochastic_beam([2, 3]),
    "OpenNMT": lambda: pybeam.compat.opennmt.beam_search([2, 3]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_searches_have_one_width(name):
    with pytest.raises(TypeError, match=r"must be an int|not supported"):
        REFUSED[name]()


@pytest.mark.parametrize(
    ("width", "error", "message"),
    [
        ([], ValueError, "`width` must be a number or one for each step, but is empty"),
        ([2, 0], ValueError, "`width` must be at least 1, but is 0"),
        ([2, 4097], ValueError, "`width` must be at most 4096, but is 4097"),
        ([2, 2.5], TypeError, "`width` must be an int, but is 2.5"),
        ("23", TypeError, "`width` must be an int, but is '23'"),
        ([5, 2], ValueError, "`n_best` must be at most `width` = 2, but is 3"),
    ],
)
def test_wrong_widths(width, error, message):
    with pytest.raises(error, match=message):
        pybeam.fixed_beam(width, n_best=3)
    model = random_model(1)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(3, n_best=3))
    bad, good = decoder.decode([pybeam.Request([1], width=width), [1]], on_error="return")
    assert isinstance(bad.error, error) and good.hypotheses


def test_a_request_cannot_ask_a_search_with_one_width(backend, model):
    decoder = pybeam.Decoder(model, pybeam.shrinking_beam(3), backend=backend)
    (result,) = decoder.decode([pybeam.Request([1], width=[2, 3])], on_error="return")
    assert "`width` must be an int in this search" in str(result.error)
