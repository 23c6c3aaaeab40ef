"""Recipes without an installed counterpart against plain Python, on random models and options."""

from __future__ import annotations

import random
from functools import cache

import pytest

import pybeam
import recipe_oracles as oracles
from pybeam.compat import fairseq, fireredasr, opennmt
from search_models import BOS, next_logits, random_model

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


@pytest.mark.parametrize("name", SYSTEMS)
def test_same_tokens_and_scores(name):
    seen = compare(name, range(SUITES["default"]))
    # fairseq never cuts
    assert True in seen and (name == "fairseq") == (False not in seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_same_tokens_and_scores_of_many(name):
    compare(name, range(1000, 1000 + SUITES["all"]))
