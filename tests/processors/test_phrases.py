"""Searches whose outputs contain phrases: against all valid outputs, and against an allocation in Python."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

import pybeam
from pybeam.processors import must_contain
from support import laws
from support import phrases as oracle
from support.laws import essence
from support.search_models import BOS, random_model
from support.search_oracles import every_sequence, ranked_log_probs
from support.whole_search import Rules

V = 6
PHRASES = {
    "one": [(5, 2)],
    "two": [(3,), (4, 2)],
    "that overlap": [(2, 3), (3, 2)],
    "twice": [(2, 2), (2, 2)],
    "in another": [(2,), (3, 2)],
    "with spellings": [[(2, 4), (3,)], (5,)],
}
BEAMS = {
    "refill": pybeam.fixed_beam,
    "held": pybeam.variable_beam,
    "shrink": pybeam.shrinking_beam,
    "regrow": pybeam.huang_beam,
}


def decoded(model, search, requests):
    return laws.decoded(model, search, pybeam.Fifo(2), "native", requests)


def valid(model, source, phrases, length):
    """All valid outputs and their scores, best first."""
    found = every_sequence(ranked_log_probs(model, source, "reference"), length)
    found = [one for one in found if oracle.contains_all(one.tokens, phrases)]
    return sorted(found, key=lambda one: -one.score)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", BEAMS)
@pytest.mark.parametrize("phrases", PHRASES.values(), ids=PHRASES)
def test_a_wide_beam_finds_the_best_of_all_valid_outputs(phrases, kind):
    model = random_model(len(phrases) + 3, V)
    search = BEAMS[kind](
        160,
        n_best=20,
        max_length=4,
        stop=pybeam.stopping.end(),
        processors=[must_contain(phrases)],
    )
    phrases = must_contain(phrases).phrases
    for source, result in enumerate(decoded(model, search, [[3]])):
        best = valid(model, source, phrases, 4)[:20]
        assert [h.tokens for h in result.hypotheses] == [one.tokens for one in best]
        assert [h.score for h in result.hypotheses] == pytest.approx([one.score for one in best])


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", BEAMS)
@pytest.mark.parametrize("levels", [None, 3], ids=["scores", "ties"])
def test_places_are_those_of_dynamic_beam_allocation(kind, levels):
    rng = random.Random(len(kind))
    for seed in range(3):
        model = random_model(seed, V, levels=levels, eos_bonus=1.0)
        texts = [tuple(rng.choices([2, 3, 4], k=rng.randint(1, 2))) for _ in range(4)]
        phrases = [*oracle.as_spellings(texts[:2]), tuple(texts[2:])]
        width, length = rng.randint(2, 6), rng.randint(7, 9)
        search = BEAMS[kind](
            width,
            n_best=width,
            max_length=length,
            stop=pybeam.stopping.end(),
            processors=[must_contain(phrases)],
        )
        rules = Rules(
            "shrink" if kind == "regrow" else kind,
            width,
            width,
            length,
            ended_only=search.ended_only,
            regrows=search.regrows,
        )
        for source, result in enumerate(decoded(model, search, [[3], [4]])):
            expected = oracle.AllocatedSearch(
                step_of(model, source, phrases, length), rules, phrases
            ).run([])
            found = [(h.tokens, h.ended) for h in result.hypotheses]
            assert found == [(entry.tokens, True) for entry in expected.found]
            assert (result.steps, result.expansions) == (expected.steps, expected.expansions)


def step_of(model, source, phrases, length):
    log_probs = ranked_log_probs(model, source, "native")

    def step(tokens):
        pairs = log_probs(tokens)
        row = [-math.inf] * V
        for token, value in pairs:
            row[token] = value
        row = oracle.must_contain(row, [BOS, *tokens], 0, phrases, length)
        return [pair for pair in pairs if row[pair[0]] > -math.inf]

    return step


def test_places_that_a_narrow_beam_keeps_find_better_outputs():
    """Without allocation phrases come when `max_length` forces them."""
    phrases, gained = oracle.as_spellings([(5, 2), (4, 3, 4)]), []
    for seed in range(3):
        model = random_model(seed, 9, eos_bonus=1.0)
        free, allocated = [
            decoded(
                model,
                pybeam.fixed_beam(
                    8, max_length=14, processors=[must_contain(phrases, allocates=allocates)]
                ),
                [[3]],
            )[0].hypotheses[0]
            for allocates in (False, True)
        ]
        assert oracle.contains_all(free.tokens, phrases)
        assert oracle.contains_all(allocated.tokens, phrases)
        gained.append(allocated.score - free.score)
    assert sum(gained) > len(gained)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("prefix", [[5], [5, 2], [2, 2, 5]])
def test_tokens_of_a_prefix_count(prefix):
    model, phrases = random_model(2, V), oracle.as_spellings([(5, 2), (2, 2)])
    search = pybeam.fixed_beam(160, n_best=5, max_length=4, processors=[must_contain(phrases)])
    [result] = decoded(model, search, [pybeam.Request([3], prefix=prefix)])
    step = ranked_log_probs(model, 0, "reference")
    rest = every_sequence(lambda tokens: step([*prefix, *tokens]), 4)
    rest = [one for one in rest if oracle.contains_all((*prefix, *one.tokens), phrases)]
    rest.sort(key=lambda one: -one.score)
    assert [h.tokens for h in result.hypotheses] == [[*prefix, *one.tokens] for one in rest[:5]]


def test_requests_bring_phrases_and_those_without_decode_as_ever():
    model, requests = random_model(7, V), [[3], [4], [5]]
    plain = pybeam.fixed_beam(4, n_best=4, max_length=9)
    search = dataclasses.replace(plain, processors=(must_contain(),))
    own = [must_contain([(2, 3)]), must_contain(), must_contain([(4,), (4,)])]
    asked = [
        pybeam.Request(source, source_id=i, processors=[phrases])
        for i, (source, phrases) in enumerate(zip(requests, own, strict=True))
    ]
    together = decoded(model, search, asked)
    for i, request in enumerate(asked):
        [alone] = decoded(model, search, [request])
        assert essence([together[i]])[0][1:] == essence([alone])[0][1:]
    assert essence(together)[1] == essence(decoded(model, plain, requests))[1]
    for request, result in zip(own, together, strict=True):
        assert all(oracle.contains_all(h.tokens, request.phrases) for h in result.hypotheses)


def test_given_outputs_without_a_phrase_are_impossible():
    model = random_model(3, V)
    decoder = pybeam.Decoder(
        model, pybeam.fixed_beam(3, max_length=6, processors=[must_contain([(5, 2)])])
    )
    plain = pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=6))
    targets = [[4, 5, 2], [4, 5]]
    found = [
        [result.hypotheses[0].score for result in one.score([[3], [3]], targets)]
        for one in (decoder, plain)
    ]
    assert found[0] == [found[1][0], -math.inf]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: must_contain([[]]), "must not hold an empty one"),
        (lambda: must_contain([[[5], []]]), "must not hold an empty one"),
        (lambda: must_contain([" "], Spelled()), "must not hold an empty one"),
        (
            lambda: must_contain(["x"], Spelled()),
            "must be what the tokenizer can spell, but hold 'x'",
        ),
        (lambda: must_contain([[5]], stage="logits"), "use allocates=False"),
        (lambda: must_contain([[5]], stage="both"), "`stage` must be 'logits' or 'log_probs'"),
        (lambda: must_contain([[5], [1]]), r"`phrases` must not hold EOS \(1\)"),
        (lambda: must_contain([[5, 77]]), "must hold ids of the model's vocabulary, 0 to 5"),
    ],
)
def test_phrases_that_no_output_has_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        pybeam.Decoder(random_model(1, V), pybeam.fixed_beam(2, processors=[make()]))


def test_texts_have_the_spellings_of_both_places():
    made = must_contain(["a", "ba", [5]], Spelled())
    assert made.phrases == (((2,), (4, 2)), ((3, 2), (4, 3, 2)), ((5,),))
    assert must_contain(["a"], Spelled(begins=[4])).phrases == (((4, 2),),)
    for wrong in ("ab", ["ab"], [5], [["a"]], 5):
        with pytest.raises(TypeError, match=r"must (be|hold)"):
            must_contain(wrong)


class Spelled:
    """A tokenizer of letters, with a token for a space, which may be spelled at the beginning, too."""

    unk_id = 0

    def __init__(self, begins=()):
        self._begins = list(begins)

    def encode_target(self, text):
        text = text.strip() if self._begins else text
        return self._begins + [{"a": 2, "b": 3, " ": 4}.get(letter, 0) for letter in text]


def test_phrases_that_do_not_fit_are_an_error_of_their_request():
    search = pybeam.fixed_beam(2, max_length=3, processors=[must_contain()])
    decoder = pybeam.Decoder(random_model(1, V), search)
    asked = [pybeam.Request([3], processors=[must_contain([(2, 4, 5)])]), [3]]
    lacks, has = decoder.decode(asked, on_error="return")
    assert "must be at least 4" in str(lacks.error)
    assert has.error is None


def test_stochastic_beams_sample_from_valid_outputs():
    search = pybeam.stochastic_beam(4, 3, max_length=7, processors=[must_contain([(5, 2)])])
    [result] = decoded(random_model(5, V), search, [[3]])
    assert len({tuple(h.tokens) for h in result.hypotheses}) == 4
    assert all(oracle.contains_all(h.tokens, [((5, 2),)]) for h in result.hypotheses)
