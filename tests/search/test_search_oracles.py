"""The engine against independent searches in plain Python, on hundreds of random models, ties included."""

import math
import random

import pytest

import pybeam
from support.search_models import random_model
from support.search_oracles import every_sequence, fairseq, ranked_log_probs, yang

MAX_LENGTH = 12


def assert_same(result, expected, n_best, alpha=0.0):
    """Same tokens and the same float32 scores, in the order the oracle ranks them."""
    expected = sorted(expected, key=lambda found: -float(found.score) / found.length**alpha)[
        :n_best
    ]
    assert [h.tokens for h in result.hypotheses] == [found.tokens for found in expected]
    assert [h.score for h in result.hypotheses] == [float(found.score) for found in expected]
    assert [h.ended for h in result.hypotheses] == [found.ended for found in expected]


def pruning_of(rng: random.Random) -> dict:
    return {
        "threshold": rng.choice([None, math.inf, 0.7, 1.5, 4.0]),
        "max_candidates": rng.choice([None, math.inf, 1, 2, 3, 50]),
        "relative_threshold": rng.choice([None, None, 0.3, 0.05]),
        "local_threshold": rng.choice([None, None, 0.3, 0.02]),
    }


@pytest.mark.parametrize("seed", range(60))
def test_variable_beam_is_yangs(backend, seed):
    rng = random.Random(seed)
    model = random_model(
        seed,
        vocab_size=rng.choice([2, 3, 6, 9]),
        levels=rng.choice([None, 2, 4]),
        eos_bonus=rng.choice([-1.0, 0.0, 1.5]),
        minus_inf=rng.choice([0.0, 0.3]),
    )
    width = rng.choice([1, 2, 3, 5, 8])
    pruning = pruning_of(rng)
    n_best, alpha = rng.randint(1, width), rng.choice([0.0, 0.6])
    scoring = pybeam.scoring.power(alpha) if alpha else pybeam.scoring.raw()
    algorithm = pybeam.variable_beam(
        width, **pruning, n_best=n_best, max_length=MAX_LENGTH, scoring=scoring
    )
    decoder = pybeam.Decoder(model, algorithm, pybeam.Fifo(3), backend)
    num_sources = 6
    for result in decoder.decode([[1]] * num_sources):
        found, reason = yang(
            ranked_log_probs(model, result.index, backend),
            width,
            threshold=pruning["threshold"] or math.inf,
            max_candidates=min(pruning["max_candidates"] or 10**9, 10**9),
            relative=pruning["relative_threshold"] or 0.0,
            local=pruning["local_threshold"] or 0.0,
            max_length=MAX_LENGTH,
            stop_at=width if alpha else n_best,
        )
        assert_same(result, found, n_best, alpha)
        stop = "width" if alpha or n_best == width else "n_best"
        assert result.stop_reason == (stop if reason == "stop" else reason)


@pytest.mark.parametrize("seed", range(60))
def test_fixed_beam_is_fairseqs(backend, seed):
    rng = random.Random(1000 + seed)
    width = rng.choice([1, 2, 3, 5])
    model = random_model(
        seed,
        vocab_size=rng.choice([2 * width + 2, 2 * width + 5]),
        levels=rng.choice([None, 2, 4]),
        eos_bonus=rng.choice([0.5, 2.0]),
    )
    longest = 60
    decoder = pybeam.Decoder(
        model, pybeam.fixed_beam(width, n_best=width, max_length=longest), pybeam.Fifo(3), backend
    )
    compared = 0
    for result in decoder.decode([[1]] * 6):
        expected = fairseq(
            ranked_log_probs(model, result.index, backend), width, max_length=longest
        )
        if expected is not None:
            assert_same(result, expected, width)
            assert result.stop_reason == "width"
            compared += 1
    assert compared > 0


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("build", [pybeam.variable_beam, pybeam.fixed_beam])
def test_width_64_is_exhaustive_on_a_five_token_model(backend, build, seed):
    model = random_model(seed, vocab_size=5)
    unforced = model.fn

    def ends_at_length_4(prefixes, lengths, source_ids):
        logits = unforced(prefixes, lengths, source_ids).clone()
        logits[lengths == 4, :1] = -math.inf
        logits[lengths == 4, 2:] = -math.inf
        return logits

    model.fn = ends_at_length_4
    result = pybeam.Decoder(model, build(64), backend=backend).decode([[1]])[0]
    sequences = every_sequence(ranked_log_probs(model, 0, backend), 4)
    assert len(sequences) == 1 + 4 + 16 + 64
    best = max(sequences, key=lambda found: found.score)
    assert result.hypotheses[0].tokens == best.tokens
    assert result.hypotheses[0].score == float(best.score)
