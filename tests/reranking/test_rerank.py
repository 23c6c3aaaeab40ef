"""Reranking against a sum written out, and scores of other models against `Decoder.score`."""

import pytest

import pybeam
from pybeam.reranking import forward_scores, rerank, reverse_scores
from support.example_lines import LINES
from support.paths import MODEL

NORMALISED = pybeam.scoring.power(1.0)
SEARCH = pybeam.fixed_beam(4, n_best=4, scoring=NORMALISED)
SCORER = pybeam.greedy(scoring=NORMALISED)


@pytest.fixture(scope="module")
def model():
    return pybeam.load_model(MODEL)


@pytest.fixture(scope="module")
def tokenizer():
    return pybeam.load_tokenizer(MODEL)


@pytest.fixture(scope="module")
def results(model, tokenizer):
    return pybeam.Decoder(model, SEARCH).decode([*tokenizer.encode(LINES), []])


def test_final_scores_are_weighted_sums(results):
    scores = [[float(j) for j in range(len(result.hypotheses))] for result in results]
    for before, after in zip(results, rerank(results, [scores], (0.5, 2.0)), strict=True):
        expected = [(0.5 * h.final_score + 2.0 * j, h) for j, h in enumerate(before.hypotheses)]
        expected.sort(key=lambda pair: -pair[0])
        assert [h.tokens for h in after.hypotheses] == [h.tokens for _, h in expected]
        assert [h.final_score for h in after.hypotheses] == [total for total, _ in expected]
        assert {h.score for h in after.hypotheses} == {h.score for h in before.hypotheses}


def test_equal_ones_keep_their_order(results):
    same = [[1.0] * len(result.hypotheses) for result in results]
    ranked = rerank(results, [same], (0.0, 1.0))
    assert [[h.tokens for h in result.hypotheses] for result in ranked] == [
        [h.tokens for h in result.hypotheses] for result in results
    ]


def test_a_weight_of_zero_leaves_a_score_out(results):
    infinite = [[-float("inf")] * len(result.hypotheses) for result in results]
    assert rerank(results, [infinite], (1.0, 0.0)) == results


def test_the_same_model_changes_nothing(model, tokenizer, results):
    scores = forward_scores(pybeam.Decoder(model, SCORER), [*tokenizer.encode(LINES), []], results)
    for own, result in zip(scores, results, strict=True):
        assert own == pytest.approx([h.final_score for h in result.hypotheses], abs=1e-5)
    before = [[h.tokens for h in result.hypotheses] for result in results]
    after = rerank(results, [scores], (0.5, 0.5))
    assert [[h.tokens for h in result.hypotheses] for result in after] == before


def test_prefixes_are_not_scored_twice(model, tokenizer):
    request = pybeam.Request(tokenizer.encode(LINES[0]), prefix=tokenizer.encode_target("And God"))
    found = pybeam.Decoder(model, SEARCH).decode([request])
    [scores] = forward_scores(pybeam.Decoder(model, SCORER), [request], found)
    assert scores == pytest.approx([h.final_score for h in found[0].hypotheses], abs=1e-5)


def test_reverse_scores_are_of_the_source_given_the_output(model, tokenizer):
    decoder = pybeam.Decoder(model, SCORER)
    outputs = [["Jesus wept.", "Moses wept."], [], ["And he said."]]
    sources = ["Jesús lloró.", "", "Y dijo."]
    pairs = [(o, s) for s, texts in zip(sources, outputs, strict=True) for o in texts]
    scored = decoder.score(
        [tokenizer.encode(o) for o, _ in pairs], [tokenizer.encode_target(s) for _, s in pairs]
    )
    expected = [result.hypotheses[0].final_score for result in scored]
    found = reverse_scores(decoder, tokenizer, sources, outputs)
    assert found == [expected[:2], [], expected[2:]]


def test_bad_arguments(results):
    with pytest.raises(ValueError, match="`weights` must be 1 finite numbers"):
        rerank(results, [], (1.0, 2.0))
    with pytest.raises(ValueError, match=r"`scores\[0\]` must have a score for each hypothesis"):
        rerank(results, [[[1.0]]], (1.0, 2.0))
