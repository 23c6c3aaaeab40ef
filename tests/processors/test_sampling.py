"""`processors.sample`: what is drawn, how often, and that nothing beside a request matters."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.processors import sampling, truncation
from support import processor_oracles as oracles
from support.laws import SOURCES, decoded
from support.processor_rows import START, processed
from support.search_models import BOS, EOS, next_logits, random_model
from support.statistics import chi_square

V = 9


def requests_of(temperature: float, num: int, **options) -> list[pybeam.Request]:
    own = [[processors.sample(temperature, seed)] for seed in range(num)]
    return [pybeam.Request([1], source_id=0, processors=one, **options) for one in own]


@pytest.mark.slow
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


@pytest.mark.thinned(most=1)
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


def test_a_seed_has_many_draws_and_the_first_is_its_own():
    model = random_model(4, V)
    algorithm = pybeam.greedy(max_length=8, processors=[processors.sample()])
    requests = [
        pybeam.Request([1], source_id=0, processors=[processors.sample(1.0, seed, draw=draw)])
        for seed in (0, 7)
        for draw in range(20)
    ]
    found = [
        tuple(one.hypotheses[0].tokens) for one in pybeam.Decoder(model, algorithm).decode(requests)
    ]
    assert len(set(found)) > 20
    plain = pybeam.Request([1], source_id=0, processors=[processors.sample(1.0, 7)])
    [first] = pybeam.Decoder(model, algorithm).decode([plain])
    assert tuple(first.hypotheses[0].tokens) == found[20]


CUTS = [
    (dict(top_k=3), [(oracles.top_k, 3)]),
    (dict(top_p=0.7), [(oracles.top_p, 0.7)]),
    (dict(min_p=0.3), [(oracles.min_p, 0.3)]),
    (
        dict(top_k=6, top_p=0.8, min_p=0.1),
        [(oracles.top_k, 6), (oracles.top_p, 0.8), (oracles.min_p, 0.1)],
    ),
]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("everywhere", [False, True], ids=["read", "as on a GPU"])
@pytest.mark.parametrize(("cuts", "chain"), CUTS, ids=["-".join(cuts) for cuts, _ in CUTS])
def test_what_may_come_is_what_others_leave_of_it(cuts, chain, everywhere, monkeypatch):
    """As often as it should, by chi-square, beside requests that may draw anything."""
    if everywhere:
        for module in (sampling, truncation):
            monkeypatch.setattr(module, "may_read", lambda x: False)
    temperature, num = 0.7, 600
    logits = 1.5 * torch.randn(V, generator=torch.Generator().manual_seed(8)).double()
    row = oracles.log_softmax((logits / temperature).tolist())
    for oracle, given in chain:
        row = oracle(row, [START], 0, given)
    expected = torch.tensor(row).softmax(0)
    plain = processors.sample(0.0)
    requests = [(processors.sample(temperature, seed, **cuts),) for seed in range(num)]
    requests += [(processors.sample(temperature, seed),) for seed in range(num)]
    lines = logits.expand(2 * num, V).clone()
    found = processed([plain], lines, [[START]] * (2 * num), requests=requests)
    drawn = found.isfinite()
    assert drawn.sum(1).eq(1).all()
    assert not drawn[:num, expected == 0].any()
    everything = (logits / temperature).softmax(0)
    for own, shares in ((drawn[:num], expected), (drawn[num:], everything)):
        counts = dict(enumerate(own.sum(0).tolist()))
        assert chi_square(counts, dict(enumerate((num * shares).tolist()))) < 3


def test_noise_for_few_tokens_is_that_for_all(monkeypatch):
    size = 200
    histories = [[START, *[3] * i] for i in range(12)]
    logits = 3 * torch.randn(12, size, generator=torch.Generator().manual_seed(2))
    chain = [processors.sample(0.9, 4, top_k=9)]
    few = processed(chain, logits.clone(), histories)
    for module in (sampling, truncation):
        monkeypatch.setattr(module, "may_read", lambda x: False)
    assert torch.equal(processed(chain, logits.clone(), histories), few)
    assert len(set(few.argmax(1).tolist())) > 3


def test_equal_tokens_stay_together():
    """Whatever their order, so that no rule decides by number."""
    for token in range(V):
        logits = torch.zeros(1, V).log_softmax(1)
        logits[0, token] = 3.0
        for cut in (processors.top_k(2), processors.top_p(0.9999), processors.min_p(0.001)):
            assert processed([cut], logits.clone(), [[START]]).isfinite().all()
        for cut in (processors.top_k(1), processors.top_p(0.5), processors.min_p(0.5)):
            found = processed([cut], logits.clone(), [[START]])
            assert found.isfinite().nonzero().tolist() == [[0, token]]


@pytest.mark.parametrize("temperature", [1e38, 1e300])
def test_however_hot_it_is_no_forbidden_token_is_drawn(temperature):
    lines = torch.randn(200, V)
    lines[:, 2:] = -float("inf")
    requests = [(processors.sample(temperature, seed),) for seed in range(200)]
    found = processed([processors.sample()], lines, [[START]] * 200, requests=requests)
    assert found[:, :2].isfinite().sum(0).gt(60).all() and found[:, :2].isfinite().sum() == 200


def test_eos_is_not_drawn_before_it_may_come():
    model = random_model(7, V, eos_bonus=2.0)
    algorithm = pybeam.greedy(min_length=5, max_length=12, processors=[processors.sample()])
    results = pybeam.Decoder(model, algorithm).decode(requests_of(1.0, 200))
    lengths = {len(result.hypotheses[0].tokens) for result in results}
    assert min(lengths) == 5 and len(lengths) > 2


def test_a_given_output_is_scored_as_the_model_scores_it():
    model = random_model(4, V)
    decoder = pybeam.Decoder(model, pybeam.sample(top_k=2, max_length=9, seed=3))
    plain = pybeam.Decoder(model, pybeam.greedy(max_length=9))
    [drawn] = decoder.decode([[1]])
    for target in ([2, 3, 4], drawn.hypotheses[0].tokens):
        [found], [expected] = (one.score([[1]], [target])[0].hypotheses for one in (decoder, plain))
        assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-5)
    assert found.score == pytest.approx(drawn.hypotheses[0].score, abs=1e-5)


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
