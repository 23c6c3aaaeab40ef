"""`processors.sample`: what is drawn, how often, and that nothing beside a request matters."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

import pybeam
from pybeam import processors
from support.laws import SOURCES, decoded
from support.processor_rows import START, processed
from support.search_models import BOS, EOS, next_logits, random_model

V = 9


def requests_of(temperature: float, num: int, **options) -> list[pybeam.Request]:
    own = [[processors.sample(temperature, seed)] for seed in range(num)]
    return [pybeam.Request([1], source_id=0, processors=one, **options) for one in own]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_they_should(temperature):
    model, num = random_model(4, V), 4000
    algorithm = pybeam.greedy(max_length=1, processors=[processors.sample()])
    results = pybeam.Decoder(model, algorithm).decode(requests_of(temperature, num))
    drawn = Counter(
        result.hypotheses[0].tokens[0] if result.hypotheses[0].tokens else EOS for result in results
    )
    probabilities = (torch.tensor(next_logits(model, 0, []).tolist()) / temperature).softmax(0)
    for token, probability in enumerate(probabilities.tolist()):
        deviation = math.sqrt(num * probability * (1 - probability))
        assert abs(drawn[token] - num * probability) < 5 * deviation + 1


def test_scores_are_those_of_the_model():
    """At any temperature, and whatever the prefix."""
    model = random_model(4, V)
    algorithm = pybeam.greedy(max_length=9, processors=[processors.sample()])
    decoder = pybeam.Decoder(model, algorithm, log_probs=True)
    results = decoder.decode(requests_of(0.7, 20, prefix=[4, 5]))
    assert len({tuple(result.hypotheses[0].tokens) for result in results}) > 5
    for result in results:
        [found] = result.hypotheses
        path = [*found.tokens, *[EOS] * found.ended]
        expected = [
            float(next_logits(model, 0, path[:i]).log_softmax(0)[path[i]])
            for i in range(2, len(path))
        ]
        assert found.log_probs == pytest.approx(expected, abs=1e-5)
        assert found.score == pytest.approx(sum(expected), abs=1e-5)


def test_a_temperature_of_zero_is_the_search_without(backend):
    """Beside requests that sample."""
    model = random_model(7, V, eos_bonus=0.5)
    algorithm = pybeam.fixed_beam(4, max_length=12, processors=[processors.sample()])
    requests = [
        pybeam.Request(
            source, prefix=[3, 2][: i % 3], processors=[processors.sample(0.9 * (i % 2), i)]
        )
        for i, source in enumerate(SOURCES)
    ]
    plain = [pybeam.Request(one.source, prefix=one.prefix) for one in requests]
    ours = decoded(model, algorithm, pybeam.Fifo(4), backend, requests)
    theirs = decoded(model, pybeam.fixed_beam(4, max_length=12), pybeam.Fifo(4), backend, plain)
    for one, other in list(zip(ours, theirs, strict=True))[::2]:
        assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]


def test_guesses_change_no_sample():
    model = random_model(4, V)
    chain = [processors.sample(1.0, 5)]
    expected = pybeam.Decoder(model, pybeam.greedy(max_length=15, processors=chain)).decode(SOURCES)
    found = pybeam.Decoder(model, pybeam.jacobi(max_length=15, processors=chain)).decode(SOURCES)
    assert [r.hypotheses[0].tokens for r in found] == [r.hypotheses[0].tokens for r in expected]


def test_a_prefix_and_temperature_zero_are_left_alone():
    logits = torch.randn(2, V).log_softmax(1)
    histories = [[BOS, 4], [START, 4, 4]]
    found = processed([processors.sample(1.0, 3)], logits, histories, [3, 0])
    # they are normalised once more
    assert torch.equal(found[0], logits.log_softmax(1)[0])
    assert found[1].isfinite().sum() == 1
    assert torch.equal(processed([processors.sample()], logits, histories), logits.log_softmax(1))


def test_what_a_seed_draws_changes_only_on_purpose():
    """Outputs of seeds that somebody has written down."""
    model = random_model(4, V)
    algorithm = pybeam.greedy(max_length=6, processors=[processors.sample()])
    results = pybeam.Decoder(model, algorithm).decode(requests_of(1.0, 4))
    assert [result.hypotheses[0].tokens for result in results] == [
        [3, 8, 3, 8, 2, 0],
        [0, 8, 5, 0, 0, 8],
        [3, 6, 8, 0],
        [0, 8, 7, 6, 0, 7],
    ]
