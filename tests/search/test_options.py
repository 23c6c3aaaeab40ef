"""The options of searches: what `help` says of them is what they do."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

import pybeam
from pybeam import limits, scoring, stopping
from pybeam.search.algorithms import Algorithm
from pybeam.search.options import DEFAULTS, MEANING, SamplingOptions, SearchOptions

SEARCHES = [
    pybeam.greedy,
    pybeam.fixed_beam,
    pybeam.variable_beam,
    pybeam.shrinking_beam,
    pybeam.optimal_beam,
    pybeam.huang_beam,
    pybeam.stochastic_beam,
    pybeam.jacobi,
    pybeam.gauss_seidel_jacobi,
    pybeam.hybrid_jacobi,
    pybeam.adaptive_jacobi,
]
NAMES = {**vars(scoring), **vars(stopping), **vars(limits), "width": 5}


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.__name__)
def test_help_names_every_option_with_the_default_that_it_has(search):
    parameters = inspect.signature(search).parameters
    algorithm = search(5) if "width" in parameters else search()
    kind = SamplingOptions if search is pybeam.stochastic_beam else SearchOptions
    shown = {name: one for name, one in parameters.items() if name in DEFAULTS}
    assert shown.keys() == kind.__annotations__.keys()
    for name, parameter in shown.items():
        default = eval(str(parameter.default), NAMES)
        ours = getattr(algorithm, name)
        assert ours[:0] == default if name == "processors" else ours == default
        assert f"    {name} = {parameter.default}: {MEANING[name].split()[0]}" in search.__doc__


def test_there_is_one_list_of_options():
    """The functions themselves decide the other fields of an `Algorithm`."""
    decided = {"width", "finishing", "pruning", "num_groups", "regrows", "draft"}
    fields = {field.name for field in dataclasses.fields(Algorithm)}
    assert (
        fields - decided
        == DEFAULTS.keys()
        == MEANING.keys()
        == SearchOptions.__annotations__.keys()
    )


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.__name__)
def test_an_option_that_does_not_exist_is_named_with_the_nearest(search):
    with pytest.raises(TypeError) as error:
        search(**({"width": 5} if "width" in inspect.signature(search).parameters else {}), nbest=1)
    message = f"`nbest` is no option of {search.__name__}(). Did you mean `n_best`? There are: "
    assert str(error.value).startswith(message)
    known = str(error.value).removeprefix(message).split(", ")
    assert known == [*inspect.signature(search).parameters]


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda: pybeam.fixed_beam(beam_size=5), "width"),
        (lambda: pybeam.greedy(num_return_sequences=2), "n_best"),
        (lambda: pybeam.fixed_beam(5, length_penalty=1.0), "scoring=pybeam.scoring.power(1.0)"),
        (lambda: pybeam.Decoder(None, num_beams=5), "algorithm=pybeam.fixed_beam(5)"),
        (lambda: pybeam.Decoder(None, None, batch_size=8), "schedule=pybeam.Fifo(64)"),
        (lambda: pybeam.load_model("DIR", compute_type="int8"), "dtype"),
        (lambda: pybeam.load_model("DIR", dtyp="int8"), "dtype"),
    ],
)
def test_names_of_other_systems_are_answered_with_ours(call, ours):
    with pytest.raises(TypeError, match=re.escape(f"Did you mean `{ours}`? There are: ")):
        call()


def test_a_call_with_names_that_exist_is_as_ever():
    assert list(inspect.signature(pybeam.Decoder).parameters)[:2] == ["model", "algorithm"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        pybeam.load_model()


def test_given_options_stay_as_they_are():
    options = {"n_best": 2, "processors": [pybeam.processors.eos_penalty(0.5)]}
    before = dict(options)
    algorithms = [build(3, **options) for build in (pybeam.optimal_beam, pybeam.shrinking_beam)]
    assert options == before
    assert [one.n_best for one in algorithms] == [2, 2]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.__name__)
def test_help_says_first_what_the_search_does(search):
    first = search.__doc__.splitlines()[0]
    assert first.endswith(".") and len(first) > 20 and search.__doc__.count("Options:\n") == 1


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.__name__)
def test_an_output_has_at_least_one_token(search):
    width = (3,) if "width" in inspect.signature(search).parameters else ()
    assert search(*width, max_length=1).max_length == 1
    with pytest.raises(ValueError, match="`max_length` must be at least 1, but is 0"):
        search(*width, max_length=0)


@pytest.mark.parametrize(
    "given", [dict(length_reward=0.5), dict(length_reward=-0.5), dict(length_ratio=1.0)]
)
def test_rewards_and_another_scoring(given):
    with pytest.raises(ValueError, match="give either `scoring` or `length_reward`"):
        pybeam.optimal_beam(3, scoring=scoring.raw(), **given)
