"""`exact_search` finds the best of all outputs, which are scored one by one here."""

from __future__ import annotations

import itertools
import math

import pytest

import pybeam
from pybeam.models import Settings
from pybeam.study.exact import exact_search
from pybeam.text.encoded import Encoded
from support.search_models import EOS, next_logits, random_model

V, LENGTH = 6, 5


def log_prob(model, source: int, output, prefix=()) -> float:
    tokens = [*output, EOS]
    rows = [next_logits(model, source, [*prefix, *tokens[:n]]) for n in range(len(tokens))]
    return sum(float(row.log_softmax(0)[t]) for row, t in zip(rows, tokens, strict=True))


def modes(model, source: int, *, shortest: int = 0, prefix=()) -> dict[tuple[int, ...], float]:
    outputs = (
        output
        for size in range(shortest, LENGTH)
        for output in itertools.product([t for t in range(V) if t != EOS], repeat=size)
    )
    return {output: log_prob(model, source, output, prefix) for output in outputs}


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3, 40])
@pytest.mark.parametrize("eos_bonus", [0.0, -4.0])
def test_the_best_of_all_outputs(width, eos_bonus):
    model = random_model(2, V, eos_bonus=eos_bonus)
    requests = [[1], [1, 1], pybeam.Request([1], prefix=[3, 2])]
    found = exact_search(model, requests, max_length=LENGTH, width=width, together=4)
    for source, result in enumerate(found):
        scores = modes(model, source, prefix=(3, 2) if source == 2 else ())
        best = max(scores, key=scores.__getitem__)
        assert result.is_exact
        assert result.tokens == best
        assert result.log_prob == result.upper_bound == pytest.approx(scores[best], abs=1e-4)


def test_a_shortest_output():
    model = random_model(3, V, eos_bonus=1.0)
    [result] = exact_search(model, [[1]], max_length=LENGTH, min_length=3, width=2)
    scores = modes(model, 0, shortest=3)
    assert result.tokens == max(scores, key=scores.__getitem__)


def test_a_source_is_given_up():
    model = random_model(4, V, eos_bonus=-4.0)
    [result] = exact_search(model, [[1]], max_length=LENGTH, width=2, max_expansions=1)
    assert not result.is_exact
    [exact] = exact_search(model, [[1]], max_length=LENGTH)
    assert result.log_prob <= exact.log_prob <= result.upper_bound
    assert exact.expansions > result.expansions


def test_no_output_ends():
    model = random_model(5, V, eos_bonus=-math.inf)
    [result] = exact_search(model, [[1]], max_length=3)
    assert result.tokens is None
    assert result.log_prob == -math.inf
    assert result.is_exact


def test_progress_and_errors():
    model, told = random_model(6, V), []
    assert exact_search(model, [], max_length=3) == []
    exact_search(model, [[1], [1]], max_length=3, progress=lambda *one: told.append(one))
    assert told[-1] == (2, 2)
    with pytest.raises(ValueError, match="`width`"):
        exact_search(model, [[1]], max_length=3, width=0)
    with pytest.raises(ValueError, match="`together`"):
        exact_search(model, [[1]], max_length=3, together=0)


def test_a_prefix_of_the_source_counts():
    """As where `Tokenizer.encode` says that outputs begin with a language's tag."""
    model = random_model(2, V)
    [result] = exact_search(model, [Encoded([1], [3, 2])], max_length=LENGTH)
    scores = modes(model, 0, prefix=(3, 2))
    assert result.tokens == max(scores, key=scores.__getitem__)
    [without] = exact_search(
        model, [pybeam.Request(Encoded([1], [3, 2]), prefix=[])], max_length=LENGTH
    )
    scores = modes(model, 0)
    assert without.tokens == max(scores, key=scores.__getitem__)


def test_settings_of_a_folder_are_refused():
    model = random_model(2, V)
    model.settings = Settings(min_length=3, exponential_decay_length_penalty=(0, 2.0))
    with pytest.raises(ValueError, match="must have no settings of its folder"):
        exact_search(model, [[1]], max_length=LENGTH)
    [result] = exact_search(model.without(*model.settings.names), [[1]], max_length=LENGTH)
    assert result.is_exact
