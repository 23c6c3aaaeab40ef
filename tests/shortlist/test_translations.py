"""Searches with shortlists: as with a mask for each source, in any batch, and as without them."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.models import FunctionModel
from pybeam.shortlist import allowed_translations
from pybeam.shortlist.translations import AllowedTranslations
from support.laws import ALGORITHMS, decoded, essence
from support.search_models import BOS, EOS, random_model

V = 12
# lists of 1 to 7 tokens
RULES = {(1,): [2], (2,): [3, 4, 5], (3,): [6, 11, 7, 8], (4, 4): [9, 10]}
SHORTLIST = pybeam.Shortlist(RULES, [2])
SOURCES = [[1], [4, 4, 4], [3, 1], [2, 3, 2, 1], [4], [4, 4, 2], [3, 3, 3]]
RULE = allowed_translations(SHORTLIST)


def with_chain(algorithm, *chain):
    return dataclasses.replace(algorithm, processors=(*chain, *algorithm.processors))


def requests_of(sources=SOURCES, **options):
    return [
        pybeam.Request(source, prefix=[3, 2][: i % 3], source_id=i, **options)
        for i, source in enumerate(sources)
    ]


def masked(source):
    """A mask for one source, in front of the softmax, behind the prefix."""
    mask = torch.zeros(V, dtype=torch.bool)
    mask[[EOS, *SHORTLIST.tokens_of(source)]] = True
    within = lambda rows: mask | (rows.num_generated < 0)[:, None]  # noqa: E731
    return processors.allowed_tokens(within)


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_as_with_a_mask_for_each_source(backend, name):
    model = random_model(3, V, eos_bonus=0.3)
    ours = decoded(
        model, with_chain(ALGORITHMS[name], RULE), pybeam.Fifo(4), backend, requests_of()
    )
    for one, request in zip(ours, requests_of(), strict=True):
        alone = with_chain(ALGORITHMS[name], masked(request.source))
        [other] = decoded(model, alone, pybeam.Batch(1), backend, [request])
        assert (one.stop_reason, one.steps) == (other.stop_reason, other.steps)
        assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]
        expected = [h.final_score for h in other.hypotheses]
        assert [h.final_score for h in one.hypotheses] == pytest.approx(expected, abs=1e-4)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("name", ["greedy", "fixed", "variable", "power", "shrinking", "optimal"])
def test_columns_give_what_the_vocabulary_gives(backend, monkeypatch, name):
    """To the last bit, so that a batch may change from one to the other."""
    model = random_model(7, V, levels=2)
    algorithm = with_chain(ALGORITHMS[name], RULE)
    narrow = essence(decoded(model, algorithm, pybeam.Fifo(4), backend, requests_of()))
    target = pybeam.Request([1], target=[2, 2])
    mixed = decoded(model, algorithm, pybeam.Fifo(4), backend, [*requests_of(), target])
    assert essence(mixed[:-1]) == narrow
    monkeypatch.setattr(AllowedTranslations, "can_narrow", lambda self, eos_id, own: False)
    assert essence(decoded(model, algorithm, pybeam.Fifo(4), backend, requests_of())) == narrow


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("first", [0, 2])
def test_a_list_of_all_tokens_changes_nothing(backend, first):
    """EOS stands among them, or in front of all that the model ever says."""
    table = random_model(5, V)
    never = torch.tensor([BOS])
    model = FunctionModel(
        lambda *rows: table.fn(*rows).index_fill(1, never, -math.inf), V, BOS, EOS
    )
    rule = allowed_translations(pybeam.Shortlist({}, range(first, V), without=[EOS]))
    assert rule.can_narrow((EOS,), rule) == (first == 2)
    algorithm = pybeam.fixed_beam(4, n_best=4, max_length=8)
    for one, other in zip(
        decoded(model, with_chain(algorithm, rule), pybeam.Fifo(4), backend, requests_of()),
        decoded(model, algorithm, pybeam.Fifo(4), backend, requests_of()),
        strict=True,
    ):
        assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]
        expected = [h.score for h in other.hypotheses]
        assert [h.score for h in one.hypotheses] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("eos", [0, 5, V - 1])
def test_eos_is_always_allowed(backend, eos):
    """In front of all tokens, among them or behind them, also where nothing else is."""
    model = FunctionModel(random_model(4, V).fn, V, BOS, eos)
    shortlist = pybeam.Shortlist({(1,): [2, 3, 8, 9]}, without=[eos])
    algorithm = pybeam.fixed_beam(6, n_best=6, max_length=2)
    rule = allowed_translations(shortlist)
    one, nothing = decoded(model, with_chain(algorithm, rule), pybeam.Fifo(4), backend, [[1], [7]])
    assert [(h.tokens, h.score) for h in nothing.hypotheses] == [([], 0.0)]
    assert any(h.ended for h in one.hypotheses)
    assert {token for h in one.hypotheses for token in h.tokens} <= {2, 3, 8, 9}


@pytest.mark.parametrize("source", [[], (), torch.zeros(0, dtype=torch.int64)])
def test_a_source_of_no_tokens(source):
    decoder = pybeam.Decoder(random_model(4, V), pybeam.greedy(max_length=2, processors=[RULE]))
    [result] = decoder.decode([pybeam.Request(source)])
    assert result.stop_reason == "empty_source"
    own = RULE.of_source(source, [])
    assert own.tokens.tolist() == [2]


@pytest.mark.thinned(most=1)
def test_lists_grow_while_others_are_decoded(backend):
    """A longer list that comes later moves those that are there, and changes no bit of theirs."""
    model = random_model(9, 300, eos_bonus=-1.0)
    # 3 to 207 tokens
    shortlist = pybeam.Shortlist({(i,): range(2, 5 + 17 * i) for i in range(13)})
    rule = allowed_translations(shortlist)
    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=9, processors=[rule])
    requests = [pybeam.Request([i], source_id=i) for i in (3, 0, 1, 4, 12, 2, 12)]
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(2, window=1), backend)
    alone = pybeam.Decoder(model, algorithm, pybeam.Batch(1), backend)
    # from the shortest list to the longest
    expected = {
        i: alone.decode([pybeam.Request([i], source_id=i)])[0].hypotheses for i in range(13)
    }
    for request, result in zip(requests, decoder.decode(requests), strict=True):
        assert result.hypotheses == expected[request.source_id]


def test_a_request_has_a_shortlist_of_its_own(backend):
    own = allowed_translations(pybeam.Shortlist({}, [9]))
    model = random_model(5, V, eos_bonus=-2.0)
    algorithm = pybeam.greedy(max_length=4, processors=[RULE])
    requests = [*requests_of(), *requests_of(processors=[own])]
    results = decoded(model, algorithm, pybeam.Fifo(4), backend, requests)
    for request, result in zip(requests, results, strict=True):
        rule = SHORTLIST.tokens_of(request.source) if request.processors is None else [9]
        [found] = result.hypotheses
        assert found.tokens[request.prefix_length :]
        assert set(found.tokens[request.prefix_length :]) <= set(rule)


@pytest.mark.parametrize("always", [[8], [2], []])
def test_a_list_on_another_side_of_eos(backend, always):
    """The smallest of equally probable tokens wins, whatever lists the neighbours have."""
    model = FunctionModel(lambda prefixes, *_: torch.zeros(len(prefixes), V), V, BOS, 5)
    rules = {one: [allowed_translations(pybeam.Shortlist({}, [one, 9]))] for one in (2, 8)}
    algorithm = pybeam.greedy(
        max_length=3, processors=[allowed_translations(pybeam.Shortlist({}, always))]
    )
    requests = [pybeam.Request([1], processors=rules[one]) for one in (8, 2, 8)]
    alone = [decoded(model, algorithm, pybeam.Batch(1), backend, [one])[0] for one in requests]
    together = decoded(model, algorithm, pybeam.Fifo(4, window=1), backend, requests)
    for results in (alone, together):
        assert [h.tokens for r in results for h in r.hypotheses] == [[], [2, 2, 2], []]


def test_a_target_gets_the_score_of_the_search():
    model = random_model(5, V)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(4, n_best=4, processors=[RULE]))
    (result,) = decoder.decode([[3]])
    targets = [h.tokens for h in result.hypotheses]
    same = [pybeam.Request([3], source_id=0)] * 4
    for one, other in zip(decoder.score(same, targets), result.hypotheses, strict=True):
        assert one.hypotheses[0].score == pytest.approx(other.score, abs=1e-5)
    (other,) = decoder.score([[3]], [[3]])
    assert other.hypotheses[0].score == -math.inf


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([V], "must hold ids of the model's vocabulary, 0 to 11, but holds 12"),
        (
            [2, EOS],
            r"must not hold EOS \(1\), which is allowed anyway; make it with `without=\[1\]`",
        ),
    ],
)
def test_lists_that_do_not_fit_the_model(tokens, message):
    for shortlist in (pybeam.Shortlist({}, tokens), pybeam.Shortlist({(3,): tokens})):
        algorithm = pybeam.greedy(processors=[allowed_translations(shortlist)])
        with pytest.raises(ValueError, match=message):
            pybeam.Decoder(random_model(5, V), algorithm)


def test_what_is_no_shortlist():
    with pytest.raises(TypeError, match="must be a pybeam"):
        allowed_translations({})
