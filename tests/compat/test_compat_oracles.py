"""Recipes without an installed counterpart against plain Python, on random models and options."""

from __future__ import annotations

import dataclasses
import random
from functools import cache

import pytest

import pybeam
from pybeam.compat import ctranslate2, fairseq, fireredasr, opennmt
from pybeam.limits import PrefixRule, SourceLimit
from pybeam.stopping import Stop
from support import recipe_oracles as oracles
from support.search_models import BOS, next_logits, random_model

PAD, UNK = 2, 3
SUITES = {"default": 25, "all": 150}


def fairseq_options(rng: random.Random) -> dict:
    beam = rng.choice([1, 2, 3, 5])
    return dict(
        beam=beam,
        nbest=rng.randint(1, beam),
        max_len_a=rng.choice([0.0, 0.7, 1.5]),
        max_len_b=rng.choice([3, 6, 11]),
        min_len=rng.choice([0, 1, 3]),
        normalize_scores=rng.random() < 0.8,
        lenpen=rng.choice([-0.5, 0.0, 0.6, 1.0, 2.0]),
        unkpen=rng.choice([0.0, 0.0, 1.5, -2.0]),
        temperature=rng.choice([1.0, 1.0, 0.5, 1.7]),
        no_repeat_ngram_size=rng.choice([0, 0, 2, 3]),
        tokens_to_suppress=rng.choice([[], [], [5, 8]]),  # in no prefix
        pad_id=PAD,
        unk_id=UNK,
    )


def opennmt_options(rng: random.Random) -> dict:
    beam_size = rng.choice([1, 2, 3, 5, 8])
    return dict(
        beam_size=beam_size,
        n_best=rng.randint(1, beam_size),
        length_penalty=rng.choice(["avg", "wu", "none"]),
        alpha=rng.choice([-0.5, 0.0, 0.6, 1.0, 2.0]),
        min_length=rng.choice([0, 0, 1, 3]),
        max_length=rng.choice([4, 7, 12]),
        block_ngram_repeat=rng.choice([0, 0, 2, 3]),
        ban_unk_token=rng.random() < 0.3,
        unk_id=UNK,
    )


def fireredasr_options(rng: random.Random) -> dict:
    beam_size = rng.choice([1, 2, 3, 5, 8])
    return dict(
        beam_size=beam_size,
        nbest=rng.randint(1, beam_size),
        decode_max_len=rng.choice([0, 0, 1, 5, 12]),
        softmax_smoothing=rng.choice([1.0, 1.25, 0.6]),
        length_penalty=rng.choice([-1.0, 0.0, 0.6, 1.0, 2.0]),
        eos_penalty=rng.choice([1.0, 1.0, 0.8, 0.3]),
    )


# name -> (recipe, oracle, options, whether it takes a prefix)
SYSTEMS = {
    "fairseq": (fairseq.beam_search, oracles.fairseq, fairseq_options, True),
    "opennmt": (opennmt.beam_search, oracles.opennmt, opennmt_options, True),
    "fireredasr": (fireredasr.beam_search, oracles.fireredasr, fireredasr_options, False),
}


def compare(name: str, seeds: range) -> set:
    """Compare tokens and scores of some sources at a time; returns how hypotheses and searches ended."""
    recipe, oracle, options_of, takes_prefix = SYSTEMS[name]
    seen = set()
    for seed in seeds:
        rng = random.Random(seed)
        model = random_model(seed, vocab_size=11, eos_bonus=rng.choice([-1.0, 0.5, 2.0]))
        options = options_of(rng)
        algorithm = recipe(**options)
        requests = []
        for _ in range(4):
            prefix = [rng.choice([4, 6, 7, 9, 10]) for _ in range(rng.choice([0, 0, 1, 2]))]
            prefix = prefix if takes_prefix else []
            requests.append(pybeam.Request([1] * rng.randint(1, 9), prefix=prefix))
        results = pybeam.Decoder(model, algorithm, pybeam.Fifo(3)).decode(requests)
        for result, request in zip(results, requests, strict=True):
            logits = cache(
                lambda tokens, i=result.index, model=model: next_logits(
                    model, i, list(tokens)
                ).tolist()
            )
            given = dict(prefix=request.prefix) if takes_prefix else {}
            expected = oracle(
                lambda tokens, logits=logits: logits(tuple(tokens)),
                11,
                BOS,
                len(request.source),
                **options,
                **given,
            )
            assert result.error is None, result.error
            context = name, seed, options, request
            assert [h.tokens for h in result.hypotheses] == [e.tokens for e in expected], context
            assert [h.final_score for h in result.hypotheses] == pytest.approx(
                [e.final for e in expected], abs=1e-4
            ), context
            assert [h.ended for h in result.hypotheses] == [e.ended for e in expected], context
            seen |= {result.stop_reason, *(h.ended for h in result.hypotheses)}
    return seen


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", SYSTEMS)
def test_same_tokens_and_scores(name):
    seen = compare(name, range(SUITES["default"]))
    # fairseq never cuts
    assert True in seen and (name == "fairseq") == (False not in seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_same_tokens_and_scores_of_many(name):
    compare(name, range(1000, 1000 + SUITES["all"]))


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (fairseq, dict(nbest=6), "`nbest` must be at most `beam` = 5, but is 6; widen the beam"),
        (fairseq, dict(beam=0), "`nbest` must be at most `beam` = 0"),
        (fairseq, dict(min_len=9, max_len_b=8), "`min_len` must be at most `max_len_b` = 8"),
        (fairseq, dict(max_len_a=-1), "`ratio` must be finite and not negative, but is -1"),
        (fairseq, dict(unkpen=1), "`unkpen` needs `unk_id`, which is not given"),
        (fairseq, dict(temperature=0), "`temperature` must be finite, greater than 0"),
        (opennmt, dict(n_best=6), "`n_best` must be at most `beam_size` = 5"),
        (opennmt, dict(length_penalty="gnmt"), "must be one of 'avg', 'wu', 'none', but is 'gnmt'"),
        (opennmt, dict(block_ngram_repeat=1), "`block_ngram_repeat` must be 0 or at least 2"),
        (opennmt, dict(ban_unk_token=True), "`ban_unk_token` needs `unk_id`"),
        (opennmt, dict(min_length=9, max_length=9), "`min_length` must be less than `max_length`"),
        (fireredasr, dict(nbest=2), "`nbest` must be at most `beam_size` = 1"),
        (fireredasr, dict(eos_penalty=1.5), "`eos_penalty` must be more than 0 and at most 1"),
        (fireredasr, dict(eos_penalty=0), "`eos_penalty` must be more than 0 and at most 1"),
        (fireredasr, dict(decode_max_len=-1), "`decode_max_len` must not be negative"),
        (fireredasr, dict(softmax_smoothing=0), "`temperature` must be finite, greater than 0"),
    ],
)
def test_what_makes_no_sense_is_refused(recipe, options, message):
    with pytest.raises(ValueError, match=message):
        recipe.beam_search(**options)


def test_limits_that_follow_the_source_are_checked_with_it():
    """min_len may be too much for some sources only; a prefix must leave room."""
    model = random_model(0, vocab_size=11)
    decoder = pybeam.Decoder(model, fairseq.beam_search(2, max_len_a=1, max_len_b=0, min_len=3))
    short, long = decoder.decode([[1] * 2, [1] * 5], on_error="return")
    assert "`min_length` must be less than `max_length` = 3" in str(short.error)
    assert long.error is None and len(long.hypotheses[0].tokens) <= 5
    (full,) = decoder.decode([pybeam.Request([1] * 3, prefix=[4] * 4)], on_error="return")
    assert "`max_length` counts the prefix here and must be more than its 4" in str(full.error)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: pybeam.fixed_beam(4, n_best=3, stop=Stop(patience=0.5)),
            r"`n_best` must be at most round\(patience \* width\) = 2, after which the search stops",
        ),
        (
            lambda: dataclasses.replace(pybeam.fixed_beam(4), regrows=True),
            "`regrows` gives back the places",
        ),
        (
            lambda: pybeam.shrinking_beam(4, prefix=ctranslate2.HARD_PREFIX),
            "`leading_eos` of `prefix` belongs to",
        ),
        (lambda: PrefixRule(is_scored=True), "`is_scored` needs `in_length`"),
        (lambda: SourceLimit(1, float("inf")), "`constant` must be finite and not negative"),
        (lambda: pybeam.scoring.reward(1.0).behind(2), "`reward` must be 0 where a prefix counts"),
    ],
)
def test_what_recipes_are_made_of_refuses_too(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_alternatives_need_prefixes_that_count_for_nothing():
    decoder = pybeam.Decoder(random_model(0, vocab_size=11), opennmt.beam_search(2))
    with pytest.raises(ValueError, match="alternatives are for algorithms whose prefixes count"):
        decoder.alternatives([[1]], 2)
