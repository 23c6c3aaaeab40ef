"""Searches of catalogues: against all items scored one by one, against a plain trie, and under every law."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.catalogue import allowed_items
from pybeam.catalogue.items import AllowedItems
from pybeam.engine.workspace import Workspace
from pybeam.models import FunctionModel
from support.item_lists import random_items
from support.laws import ALGORITHMS, SOURCES, decoded, essence
from support.search_models import BOS, EOS, next_logits, random_model

V = 9
ITEMS = random_items(5, 40, range(2, V), range(1, 5), repeats=12)
CATALOGUE = pybeam.Catalogue.build(ITEMS)
FILTERS = [
    None,
    CATALOGUE.filter(allow=range(0, len(ITEMS), 3)),
    CATALOGUE.filter(deny=[0, 1, 2, 20]),
    CATALOGUE.filter(allow=[7]),
    CATALOGUE.filter(allow=[]),
]


def allowed_ids(chosen) -> set[int]:
    return {i for i, item in enumerate(ITEMS) if i in CATALOGUE.items_of(item, chosen)}


def item_scores(model, source, chosen, renormalize, prefix=(), eos=EOS) -> dict[tuple, float]:
    """The score of every allowed sequence, computed from the model's function alone."""
    sequences = {tuple(ITEMS[i]) for i in allowed_ids(chosen)}
    scores = {}
    for sequence in sequences:
        score = 0.0
        for n in range(len(sequence) + 1):
            begin = sequence[:n]
            row = next_logits(model, source, [*prefix, *begin]).double()
            may_follow = {one[n] for one in sequences if one[:n] == begin and len(one) > n}
            may_follow |= {eos} if begin in sequences else set()
            token = sequence[n] if n < len(sequence) else eos
            over = row[sorted(may_follow)] if renormalize else row
            score += float(row[token] - over.logsumexp(0))
        scores[sequence] = score
    return scores


def assert_ranked(result, scores, chosen, prefix=()) -> None:
    """The result is all items with their scores, best first."""
    ranked = sorted(scores, key=lambda one: -scores[one])
    assert [tuple(h.tokens) for h in result.hypotheses] == [(*prefix, *one) for one in ranked]
    expected = [scores[one] for one in ranked]
    assert [h.score for h in result.hypotheses] == pytest.approx(expected, abs=1e-4)
    left = allowed_ids(chosen)
    for hypothesis, one in zip(result.hypotheses, ranked, strict=True):
        assert hypothesis.ended
        assert hypothesis.items == tuple(i for i in sorted(left) if tuple(ITEMS[i]) == one)
    assert result.has_all_items


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("name", ["fixed", "variable", "shrinking", "optimal"])
def test_a_wide_beam_ranks_all_items(backend, name, renormalize):
    """With every filter, beside others in one batch, and behind a prefix."""
    make = {
        "fixed": pybeam.fixed_beam,
        "variable": pybeam.variable_beam,
        "shrinking": pybeam.shrinking_beam,
        "optimal": pybeam.optimal_beam,
    }[name]
    model = random_model(5, V)
    rule = allowed_items(CATALOGUE, renormalize=renormalize)
    algorithm = make(60, n_best=60, processors=[rule])
    prefixes = [(), (8, 2), (), (3,), ()]
    requests = [
        pybeam.Request([1], prefix=prefix, processors=[dataclasses.replace(rule, filter=chosen)])
        for chosen, prefix in zip(FILTERS, prefixes, strict=True)
    ]
    results = decoded(model, algorithm, pybeam.Fifo(4), backend, requests)
    for i, (result, chosen, prefix) in enumerate(zip(results, FILTERS, prefixes, strict=True)):
        scores = item_scores(model, i, chosen, renormalize, prefix)
        assert len(scores) == (chosen or CATALOGUE.everything).num_sequences
        assert_ranked(result, scores, chosen, prefix)


def with_rule(algorithm, *chain):
    """The algorithm with these processors in front of its own, and no less than the items' length."""
    return dataclasses.replace(algorithm, processors=(*chain, *algorithm.processors), max_length=15)


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("renormalize", [False, True])
def test_as_a_plain_trie(backend, name, renormalize):
    model = random_model(3, V, eos_bonus=0.3)
    stage = "logits" if renormalize else "log_probs"
    items = with_rule(ALGORITHMS[name], allowed_items(CATALOGUE, renormalize=renormalize))
    trie = with_rule(ALGORITHMS[name], processors.allowed_sequences(ITEMS, stage=stage))
    requests = [pybeam.Request(source, prefix=[3, 2][: i % 3]) for i, source in enumerate(SOURCES)]
    ours = decoded(model, items, pybeam.Fifo(4), backend, requests)
    theirs = decoded(model, trie, pybeam.Fifo(4), backend, requests)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.stop_reason, one.steps) == (other.stop_reason, other.steps)
        assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]
        expected = [h.final_score for h in other.hypotheses]
        assert [h.final_score for h in one.hypotheses] == pytest.approx(expected, abs=1e-4)


def chosen_requests(rule) -> list[pybeam.Request]:
    """Requests with filters in turn, some of which have prefixes."""
    return [
        pybeam.Request(
            source,
            prefix=[8, 2][: i % 3],
            source_id=i,
            processors=[dataclasses.replace(rule, filter=FILTERS[i % 4])],
        )
        for i, source in enumerate(SOURCES)
    ]


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("name", ["greedy", "fixed", "variable", "power", "shrinking", "optimal"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_columns_give_what_the_vocabulary_gives(backend, monkeypatch, name, renormalize):
    """To the last bit, so that a batch may change from one to the other."""
    model = random_model(7, V, levels=2)
    rule = allowed_items(CATALOGUE, renormalize=renormalize)
    algorithm = with_rule(ALGORITHMS[name], rule)
    requests = chosen_requests(rule)
    narrow = essence(decoded(model, algorithm, pybeam.Fifo(4), backend, requests))
    target = pybeam.Request([1], target=ITEMS[3])
    mixed = decoded(model, algorithm, pybeam.Fifo(4), backend, [*requests, target])
    assert essence(mixed[:-1]) == narrow
    monkeypatch.setattr(AllowedItems, "can_narrow", lambda self, eos_id, own: False)
    assert essence(decoded(model, algorithm, pybeam.Fifo(4), backend, requests)) == narrow


@pytest.mark.thinned(most=4)
@pytest.mark.parametrize("eos", [0, 5, 9, (9, 5), (0, 5)])
def test_eos_stands_anywhere(backend, eos):
    """In front of all tokens, behind them or among them; only the first of several ends an item."""
    table = random_model(4, 10)
    model = FunctionModel(table.fn, 10, BOS, eos)
    items = [[2 if token == 5 else token for token in item] for item in ITEMS]
    rule = allowed_items(pybeam.Catalogue.build(items))
    algorithm = pybeam.fixed_beam(60, n_best=60, processors=[rule])
    (result,) = decoded(model, algorithm, pybeam.Fifo(4), backend, [[1]])
    found = {tuple(h.tokens) for h in result.hypotheses}
    assert found == {tuple(item) for item in items}
    assert len(found) == len(result.hypotheses) and result.has_all_items
    first = eos if isinstance(eos, int) else eos[0]
    for hypothesis in result.hypotheses:
        path, score = [*hypothesis.tokens, first], 0.0
        for n, token in enumerate(path):
            score += float(next_logits(model, 0, path[:n]).log_softmax(0)[token])
        assert hypothesis.score == pytest.approx(score, abs=1e-4)
        assert hypothesis.eos_id == first


@pytest.mark.thinned(most=1)
def test_no_beam_ends_in_an_alley(backend):
    """However narrow the beam and the filter, every row ends in an item that is allowed."""
    rng = random.Random(2)
    for seed in range(6):
        model = random_model(seed, V, eos_bonus=-1.0)
        few = CATALOGUE.filter(allow=rng.sample(range(len(ITEMS)), 5))
        rule = allowed_items(CATALOGUE, few)
        for width in (1, 2, 3):
            algorithm = pybeam.fixed_beam(width, n_best=width, processors=[rule])
            for result in decoded(model, algorithm, pybeam.Fifo(4), backend, SOURCES[:5]):
                tokens = [tuple(h.tokens) for h in result.hypotheses]
                assert tokens and len(set(tokens)) == len(tokens)
                for hypothesis in result.hypotheses:
                    assert hypothesis.items
                    assert set(hypothesis.items) <= allowed_ids(few)


def test_it_says_when_there_are_no_more(backend):
    model = random_model(5, V)
    rule = allowed_items(CATALOGUE)
    algorithm = pybeam.fixed_beam(4, n_best=4, processors=[rule])
    few = [ITEMS.index(item) for item in ([*map(list, {tuple(item) for item in ITEMS})][:3])]
    for allow, num in ((few, 3), ([], 0), (few[:1], 1)):
        narrowed = allowed_items(CATALOGUE, CATALOGUE.filter(allow=allow))
        request = pybeam.Request([1], processors=[narrowed])
        (result,) = decoded(model, algorithm, pybeam.Fifo(4), backend, [request])
        assert len(result.hypotheses) == num
        assert result.has_all_items
    (result,) = decoded(model, algorithm, pybeam.Fifo(4), backend, [[1]])
    assert len(result.hypotheses) == 4 and not result.has_all_items


def test_items_of_one_length_need_no_eos(backend):
    """The search is cut where items end, and scores hold no EOS."""
    items = random_items(8, 50, range(2, V), range(3, 4))
    model = random_model(5, V)
    rule = allowed_items(pybeam.Catalogue.build(items))
    algorithm = pybeam.fixed_beam(60, n_best=60, max_length=3, processors=[rule])
    (result,) = decoded(model, algorithm, pybeam.Fifo(4), backend, [[1]])
    scores = {
        tuple(item): sum(
            float(next_logits(model, 0, item[:n]).log_softmax(0)[item[n]]) for n in range(3)
        )
        for item in items
    }
    assert [tuple(h.tokens) for h in result.hypotheses] == sorted(scores, key=lambda i: -scores[i])
    assert [h.score for h in result.hypotheses] == pytest.approx(
        sorted(scores.values(), reverse=True), abs=1e-4
    )
    assert result.has_all_items and not any(h.ended for h in result.hypotheses)


def test_an_empty_source_is_no_item():
    rule = allowed_items(CATALOGUE)
    decoder = pybeam.Decoder(random_model(5, V), pybeam.fixed_beam(3, processors=[rule]))
    (result,) = decoder.decode([[]])
    assert (result.hypotheses, result.stop_reason) == ([], "empty_source")


def test_a_target_of_the_catalogue_gets_the_score_of_the_search():
    model = random_model(5, V)
    rule = allowed_items(CATALOGUE)
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(4, n_best=4, processors=[rule]))
    (result,) = decoder.decode([[1]])
    targets = [h.tokens for h in result.hypotheses]
    same = [pybeam.Request([1], source_id=0)] * 4
    for one, other in zip(decoder.score(same, targets), result.hypotheses, strict=True):
        assert one.hypotheses[0].score == pytest.approx(other.score, abs=1e-5)
        assert one.hypotheses[0].items == other.items
    (other,) = decoder.score([[1]], [[2, 2, 2, 2, 2]])
    assert other.hypotheses[0].score == -math.inf
    assert other.hypotheses[0].items == ()


@pytest.mark.thinned(most=1)
def test_behind_other_processors(backend):
    """They change what the catalogue's tokens get."""
    model = random_model(5, V)
    chain = [processors.temperature(0.6), processors.eos_penalty(0.5)]
    for part in (chain[:1], chain):
        ours = pybeam.fixed_beam(5, n_best=5, processors=[*part, allowed_items(CATALOGUE)])
        trie = processors.allowed_sequences(ITEMS, stage="log_probs")
        theirs = dataclasses.replace(ours, processors=(*part, trie))
        for one, other in zip(
            decoded(model, ours, pybeam.Fifo(4), backend),
            decoded(model, theirs, pybeam.Fifo(4), backend),
            strict=True,
        ):
            assert [h.tokens for h in one.hypotheses] == [h.tokens for h in other.hypotheses]
            assert [h.score for h in one.hypotheses] == pytest.approx(
                [h.score for h in other.hypotheses], abs=1e-4
            )


def test_nan_is_still_reported(backend):
    row = torch.zeros(V)
    row[2] = math.nan
    model = FunctionModel(lambda prefixes, *_: row.repeat(len(prefixes), 1), V, BOS, EOS)
    algorithm = pybeam.fixed_beam(3, processors=[allowed_items(CATALOGUE)])
    (result,) = decoded(model, algorithm, pybeam.Fifo(4), backend, [[1]])
    assert "NaN" in str(result.error)


@pytest.mark.slow
def test_a_filter_that_many_requests_use_is_kept_once():
    rule = allowed_items(CATALOGUE)
    model, algorithm = random_model(7, V), pybeam.fixed_beam(3, processors=[rule])
    workspace = Workspace(model, algorithm, pybeam.backends.load("reference"))
    requests = chosen_requests(rule)
    for _ in range(3):
        decoded(model, algorithm, pybeam.Fifo(6), "reference", requests * 2, workspace=workspace)
    (kept,) = (one.shared for one in workspace.state.processors._processors)
    assert len(kept._held) == 4


def test_a_service_changes_filters_between_requests():
    rule = allowed_items(CATALOGUE)
    model = random_model(7, V)
    algorithm = pybeam.fixed_beam(3, n_best=3, processors=[rule])
    requests = chosen_requests(rule)
    expected = essence(pybeam.Decoder(model, algorithm).decode(requests))
    with pybeam.Service(pybeam.Decoder(model, algorithm)) as service:
        results = [future.result() for future in [service.submit(one) for one in requests]]
    assert [one.result.hypotheses for one in results] == [
        hypotheses for _, hypotheses, *_ in expected
    ]


@pytest.mark.parametrize(
    ("items", "limits", "message"),
    [
        ([[2, V - 1]], {}, None),
        (
            [[2, V]],
            {},
            f"`catalogue` must hold ids of the model's vocabulary, 0 to {V - 1}, but holds {V};",
        ),
        ([[2, EOS]], {}, rf"`catalogue` must not hold EOS \({EOS}\)"),
        ([[2, 3], [2, 3, 4]], dict(min_length=2), None),
        (
            *([[2, 3], [2, 3, 4]], dict(min_length=3)),
            "`min_length` must be at most 2, the tokens of the shortest item, but is 3",
        ),
        ([[2, 3], [2, 3, 4]], dict(max_length=4), None),
        (
            *([[2, 3], [2, 3, 4]], dict(max_length=3)),
            "`max_length` must be at least 4, the tokens of the longest item and EOS, but is 3",
        ),
        # items of one length may be cut where EOS would stand
        ([[2, 3], [5, 4]], dict(max_length=2), None),
        ([[2, 3], [5, 4]], dict(max_length=1), "`max_length` must be at least 3, .* but is 1"),
    ],
)
def test_a_catalogue_that_does_not_fit_is_refused(items, limits, message):
    rule = allowed_items(pybeam.Catalogue.build(items))
    algorithm = pybeam.fixed_beam(2, processors=[rule], **limits)

    def decode() -> None:
        decoder = pybeam.Decoder(random_model(1, V), algorithm)
        [result] = decoder.decode([[1]], on_error="return")
        if result.error is not None:
            raise result.error
        assert result.hypotheses

    if message is None:
        decode()
        return
    with pytest.raises(ValueError, match=message):
        decode()


def test_an_item_that_was_given_is_not_all_that_was_found():
    rule = allowed_items(pybeam.Catalogue.build([[2, 3]]))
    decoder = pybeam.Decoder(random_model(1, V), pybeam.fixed_beam(2, processors=[rule]))
    assert decoder.decode([[1]])[0].has_all_items
    assert not decoder.score([[1]], [[2, 3]])[0].has_all_items


def test_what_is_left_after_a_ban_is_not_normalised_again(backend):
    """The whole chain, where a catalogue cannot narrow the vocabulary, keeps the sums of others."""
    model = random_model(3, V)
    ban = processors.suppress_tokens([4], stage="log_probs")
    rule = allowed_items(pybeam.Catalogue.build([[2], [3], [5]]), renormalize=False)
    algorithm = pybeam.fixed_beam(3, n_best=3, processors=[ban, rule], max_length=2)
    [result] = pybeam.Decoder(model, algorithm, backend=backend).decode([[1]])
    for found in result.hypotheses:
        [token] = found.tokens
        first, second = (next_logits(model, 0, tokens).log_softmax(0) for tokens in ([], [token]))
        assert found.score == pytest.approx(float(first[token] + second[EOS]), abs=1e-5)


def test_what_stands_behind_it_is_heard():
    items = allowed_items(pybeam.Catalogue.build([[5, 6], [7, 8]]))
    for unlikely, likely in ((5, [7, 8]), (7, [5, 6])):
        chain = [items, processors.suppress_tokens([unlikely], stage="log_probs")]
        decoder = pybeam.Decoder(random_model(3, 9), pybeam.greedy(processors=chain))
        assert decoder.decode([[1]])[0].hypotheses[0].tokens == likely
