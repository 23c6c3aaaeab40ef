"""Minimum Bayes risk against its definition, and the weights of samples against exact expectations."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pybeam
from pybeam.reranking import (
    minimum_bayes_risk,
    pairwise,
    probability_weights,
    sample_weights,
)
from support.search_models import random_model

texts = st.lists(st.sampled_from(["", "a", "ab", "abc", "b c", "ba"]), min_size=1, max_size=6)


def overlap(hypothesis: str, reference: str) -> float:
    return len(set(hypothesis) & set(reference)) - 0.25 * len(hypothesis)


@settings(deadline=None)
@given(texts, texts, st.data())
def test_it_is_the_best_expected_utility(hypotheses, references, data):
    num = len(references)
    weights = data.draw(
        st.none() | st.lists(st.integers(1, 8).map(float), min_size=num, max_size=num)
    )
    given_weights = [1.0] * num if weights is None else weights
    expected = [
        math.fsum(w * overlap(h, r) for w, r in zip(given_weights, references, strict=True))
        / sum(given_weights)
        for h in hypotheses
    ]
    choice = minimum_bayes_risk(hypotheses, references, utility=pairwise(overlap), weights=weights)
    assert choice.utilities == pytest.approx(expected, abs=1e-12)
    assert expected[choice.index] == pytest.approx(max(expected), abs=1e-12)


def test_the_first_of_equals_is_chosen():
    assert minimum_bayes_risk(["b", "a", "a", "b"]).index == 0
    assert minimum_bayes_risk(["c", "a", "a", "b"]).index == 1


def test_a_text_that_comes_twice_counts_twice_and_is_compared_once():
    asked = []

    def utility(hypotheses, references):
        asked.append((hypotheses, references))
        return [[float(h == r) for r in references] for h in hypotheses]

    assert minimum_bayes_risk(["x", "y", "y"], utility=utility).utilities == pytest.approx(
        [1 / 3, 2 / 3, 2 / 3]
    )
    assert asked == [(["x", "y"], ["x", "y"])]


def test_weights_of_an_n_best_list():
    hypotheses = [pybeam.Hypothesis([], math.log(p), 0.0, True) for p in (0.2, 0.1, 0.1)]
    assert probability_weights(hypotheses) == pytest.approx([0.5, 0.25, 0.25])


@pytest.fixture(scope="module")
def model():
    return random_model(3, vocab_size=5)


def drawn(model, width, seeds):
    """The samples of `stochastic_beam` for many seeds."""
    search = pybeam.stochastic_beam(width, max_length=3)
    requests = [
        pybeam.Request([1], processors=[pybeam.processors.gumbel(seed)], source_id=0)
        for seed in range(seeds)
    ]
    return [result.hypotheses for result in pybeam.Decoder(model, search).decode(requests)]


def test_weighted_samples_have_the_models_expectation(model):
    everything = pybeam.Decoder(model, pybeam.stochastic_beam(127, max_length=3)).decode([[1]])
    by_tokens = {tuple(h.tokens): math.exp(h.score) for h in everything[0].hypotheses}
    assert sum(by_tokens.values()) == pytest.approx(1, abs=1e-4)
    exact = sum(p * len(tokens) for tokens, p in by_tokens.items())
    weighted, plain = [], []
    for hypotheses in drawn(model, 12, 300):
        lengths = [len(h.tokens) for h in hypotheses]
        weights = sample_weights(hypotheses)
        assert sum(weights) == pytest.approx(1) and weights[-1] == 0
        weighted.append(sum(w * n for w, n in zip(weights, lengths, strict=True)))
        plain.append(sum(lengths) / len(lengths))
    # the weighted mean is near, the plain one is not
    assert sum(weighted) / 300 == pytest.approx(exact, abs=0.04)
    assert sum(plain) / 300 != pytest.approx(exact, abs=0.08)


def test_one_sample_has_all_the_weight(model):
    assert sample_weights(drawn(model, 1, 1)[0]) == [1.0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(hypotheses=[]), "`hypotheses` must be at least one text"),
        (dict(hypotheses="ab"), "`hypotheses` must be a list of texts"),
        (dict(hypotheses=["a"], references=[]), "`references` must be at least one text"),
        (dict(hypotheses=["a"], weights=[1, 2]), "`weights` must be 1 finite numbers"),
        (dict(hypotheses=["a"], weights=[-1]), "none negative"),
        (dict(hypotheses=["a"], weights=[0]), "not all 0"),
        (
            dict(hypotheses=["a"], utility=lambda h, r: [1.0]),
            r"shape \[1, 1\].* returned shape \[1\]",
        ),
        (dict(hypotheses=["a"], utility=lambda h, r: [[math.nan]]), "finite"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        minimum_bayes_risk(**arguments)


def test_bad_samples():
    hypotheses = [pybeam.Hypothesis([], -1.0, score, True) for score in (0.0, 1.0)]
    with pytest.raises(ValueError, match="in the order of draws"):
        sample_weights(hypotheses)
    for function, order in itertools.product((sample_weights, probability_weights), ([],)):
        with pytest.raises(ValueError, match="`hypotheses` must"):
            function(order)
