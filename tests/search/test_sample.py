"""`pybeam.sample`: how often outputs come, beside their exact probabilities."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.models.settings import Settings
from pybeam.processors.sampling import Sample
from support import processor_oracles as oracles
from support.laws import SOURCES, decoded
from support.search_models import EOS, next_logits, random_model
from support.statistics import chi_square

V, LENGTH = 5, 3
CUTS = dict(temperature=1.2, top_k=4, top_p=0.9, min_p=0.05)


def outputs_of(model, source: int, cuts: dict) -> dict[tuple, float]:
    """Every output, EOS included, with the probability that it is drawn."""
    found = {}

    def descend(tokens: list[int], probability: float) -> None:
        row = next_logits(model, source, tokens).double().tolist()
        row = [v / cuts.get("temperature", 1.0) for v in row]
        row = oracles.top_k(row, [], 0, cuts.get("top_k", 0))
        row = oracles.top_p(row, [], 0, cuts.get("top_p", 1))
        row = oracles.min_p(row, [], 0, cuts.get("min_p", 0))
        for token, share in enumerate(torch.tensor(row).softmax(0).tolist()):
            longer = [*tokens, token]
            if token == EOS or len(longer) == LENGTH:
                found[tuple(longer)] = probability * share
            else:
                descend(longer, probability * share)

    descend([], 1.0)
    return found


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("cuts", [{}, CUTS], ids=["all tokens", "some tokens"])
def test_outputs_come_as_often_as_they_should(cuts, backend):
    """With one draw a request and many, in a crowd."""
    model = random_model(3, V, eos_bonus=0.5)
    num = 50 if backend == "reference" else 300
    algorithm = pybeam.sample(4, **cuts, max_length=LENGTH)
    requests = [
        pybeam.Request([1], source_id=2, processors=[processors.sample(**one_of(cuts), seed=seed)])
        for seed in range(num)
    ]
    results = decoded(model, algorithm, pybeam.Fifo(64), backend, requests)
    drawn = [one for result in results for one in result.hypotheses]
    assert len(drawn) == 4 * num
    counts = Counter((*one.tokens, *[EOS] * one.ended) for one in drawn)
    expected = outputs_of(model, 2, cuts)
    assert sum(expected.values()) == pytest.approx(1)
    assert not [output for output in counts if not expected[output]]
    assert chi_square(counts, {y: 4 * num * p for y, p in expected.items()}) < 3


def one_of(cuts: dict) -> dict:
    return {"temperature": 1.0} | cuts


def test_scores_are_those_of_the_model_and_sort_the_draws():
    model = random_model(3, V, eos_bonus=0.5)
    decoder = pybeam.Decoder(model, pybeam.sample(8, **CUTS, seed=3, max_length=LENGTH))
    plain = pybeam.Decoder(model, pybeam.greedy(max_length=LENGTH))
    [result] = decoder.decode([[1]])
    scores = [one.score for one in result.hypotheses]
    assert scores == sorted(scores, reverse=True)
    for one in result.hypotheses:
        [expected] = plain.score([[1]], [one.tokens])
        # a target is scored with its EOS
        assert one.score == pytest.approx(
            sum(expected.hypotheses[0].log_probs[: len(one.tokens) + one.ended]), abs=1e-5
        )


def drawn(algorithm, requests, schedule=None) -> list[list[tuple]]:
    model = random_model(3, V, eos_bonus=0.5)
    results = pybeam.Decoder(model, algorithm, schedule).decode(requests)
    return [[tuple(one.tokens) for one in result.hypotheses] for result in results]


def test_more_draws_find_those_of_fewer():
    few, many = (drawn(pybeam.sample(num, seed=9, max_length=LENGTH), SOURCES) for num in (2, 7))
    for one, other in zip(few, many, strict=True):
        assert len(one) == 2 and len(other) == 7 and Counter(one) <= Counter(other)


def test_a_request_may_have_a_seed_of_its_own_and_number_its_draws():
    algorithm = pybeam.sample(7, max_length=LENGTH)
    one = pybeam.Request([1], source_id=0, processors=[processors.sample(1, 9)])
    [together] = drawn(algorithm, [one])
    alone = [
        pybeam.Request([1], source_id=0, processors=[processors.sample(1, 9, draw=draw)])
        for draw in range(7)
    ]
    found = drawn(pybeam.sample(max_length=LENGTH), alone)
    assert Counter(together) == Counter(line for [line] in found)


def test_sources_have_random_numbers_of_their_own():
    """Their samples have one distribution, whatever their order; equal sources have equal ones."""
    num = 160
    sources = [[1] * (i // 20 + 1) + [2] * (i % 20) for i in range(num)]
    requests = [pybeam.Request(source, source_id=2) for source in [*sources, *sources]]
    algorithm = pybeam.sample(max_length=LENGTH, seed=4)
    found = drawn(algorithm, requests, pybeam.Fifo(16))
    assert found[:num] == found[num:]
    counts = Counter(line for [line] in found[:num])
    expected: Counter = Counter()
    for output, share in outputs_of(random_model(3, V, eos_bonus=0.5), 2, {}).items():
        expected[output[:-1] if output[-1] == EOS else output] += num * share
    assert chi_square(counts, expected) < 3


@pytest.mark.parametrize(
    "content",
    [
        torch.tensor([3, 4]),
        torch.randn(2, 3).bfloat16(),
        [3, 4],
        (torch.tensor([3]), torch.tensor([4])),
        "a text",
    ],
)
def test_any_source_gives_a_seed(content):
    sample = Sample(1.0, 5, by_source=True)
    own = sample.of_source(content, [])
    assert own == sample.of_source(content, []) and not own.by_source
    others = [Sample(1.0, 6, by_source=True).of_source(content, []), sample.of_source(content, [1])]
    others.append(sample.of_source(torch.tensor([4, 3]), []))
    assert len({own.seed, 5, *(one.seed for one in others)}) == 5


def test_at_temperature_zero_it_is_greedy():
    model = random_model(3, 9)
    ours = pybeam.Decoder(model, pybeam.sample(temperature=0.0, max_length=8)).decode(SOURCES)
    theirs = pybeam.Decoder(model, pybeam.greedy(max_length=8)).decode(SOURCES)
    assert [r.hypotheses[0].tokens for r in ours] == [r.hypotheses[0].tokens for r in theirs]


def test_a_beam_beside_samples():
    """A request may search with a wide beam where others sample."""
    model = random_model(3, 9, eos_bonus=0.5)
    algorithm = pybeam.sample(seed=2, max_length=8)
    beam = pybeam.Request(
        SOURCES[0], source_id=0, width=4, n_best=4, processors=[processors.sample()]
    )
    found, *_ = pybeam.Decoder(model, algorithm).decode([beam, *SOURCES[1:]])
    plain = pybeam.Decoder(model, pybeam.fixed_beam(4, n_best=4, max_length=8))
    [expected] = plain.decode([pybeam.Request(SOURCES[0], source_id=0)])
    assert [h.tokens for h in found.hypotheses] == [h.tokens for h in expected.hypotheses]


@pytest.mark.parametrize("is_of_folder", [False, True])
def test_bans_act_before_tokens_are_left_out(is_of_folder):
    """A banned token takes no place among the k."""
    model = random_model(3, 9)
    request = pybeam.Request([1], source_id=0)
    [best] = pybeam.Decoder(model, pybeam.greedy(max_length=1)).decode([request])
    [banned] = best.hypotheses[0].tokens
    chain = [processors.suppress_tokens([banned], stage="log_probs")]
    if is_of_folder:
        model.settings, chain = Settings(suppress_tokens=(banned,)), []
    algorithm = pybeam.sample(5, top_k=1, max_length=1, processors=chain)
    [result] = pybeam.Decoder(model, algorithm).decode([request])
    [second] = {tuple(one.tokens) for one in result.hypotheses}
    assert second != (banned,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num=0), "`num` must be 1 to 4096, but is 0"),
        (dict(temperature=-1.0), "`temperature` must be finite, greater than 0"),
        (dict(top_p=1.5), "`top_p` must be 0 to 1, but is 1.5"),
        (dict(seed=-1), "`seed` must be 0 to"),
        (dict(processors=[processors.gumbel(1)]), "must have Gumbel.* last"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        pybeam.sample(**options)


def test_options_that_it_does_not_have():
    with pytest.raises(TypeError, match="`n_best` is no option of sample"):
        pybeam.sample(3, n_best=2)


def test_no_row_of_it_is_left_without_a_token():
    """Rows in which nothing may come end, and the search with them."""
    model = random_model(3, V)
    everything = processors.suppress_tokens(range(V))
    [result] = pybeam.Decoder(model, pybeam.sample(processors=[everything])).decode([[1]])
    assert result.stop_reason == "empty_beam"
    assert not result.hypotheses or result.hypotheses[0].score == -math.inf
