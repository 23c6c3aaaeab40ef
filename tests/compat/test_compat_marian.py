"""The search of docs/coming-from/marian.md against Marian's loop in plain Python, on random models."""

from __future__ import annotations

import math
import random

import pytest

import pybeam
from pybeam.tasks.search import MARIAN_ROUNDING
from support.processor_oracles import log_softmax
from support.search_models import EOS, next_logits, random_model

UNK = 3


def marian(logits, *, beam_size: int, normalize: float, limit: int, allow_unk: bool) -> list[tuple]:
    """(final score, tokens) of all hypotheses, best first."""
    live, found = [((), 0.0)], []
    length = 0
    while live:
        length += 1
        candidates = []
        for tokens, score in live:
            log_probs = log_softmax(logits(list(tokens)))
            for token, log_prob in enumerate(log_probs):
                if token != UNK or allow_unk:
                    candidates.append((score + log_prob, tokens, token))
        # a beam that lost hypotheses stays as narrow as it is
        room = beam_size if length == 1 else len(live)
        beam = sorted(candidates, key=lambda one: -one[0])[:room]
        is_last, live = length >= limit, []
        for score, tokens, token in beam:
            longer = tokens if token == EOS else (*tokens, token)
            if token == EOS or is_last:
                found.append((score / length**normalize, longer))
            else:
                live.append((longer, score))
    return sorted(found, key=lambda one: -one[0])


@pytest.mark.thinned(most=15)
@pytest.mark.parametrize("seed", range(40))
def test_hypotheses_and_scores_are_marians(seed):
    rng = random.Random(seed)
    beam_size, normalize = rng.choice([1, 2, 3, 5]), rng.choice([0.0, 0.6, 1.0])
    source, allow_unk = list(range(rng.randint(1, 3))), rng.random() < 0.3
    factor = rng.choice([1.5, 3.0])
    model = random_model(seed)
    processors = [] if allow_unk else [pybeam.processors.no_unk(UNK, stage="log_probs")]
    search = pybeam.shrinking_beam(
        beam_size,
        n_best=beam_size,
        max_length=pybeam.limits.SourceLimit(factor, MARIAN_ROUNDING),
        scoring=pybeam.scoring.power(normalize),
        processors=processors,
        ended_only=False,
    )
    (result,) = pybeam.Decoder(model, search).decode([source])
    expected = marian(
        lambda tokens: next_logits(model, 0, tokens).tolist(),
        beam_size=beam_size,
        normalize=normalize,
        limit=math.ceil(factor * len(source)),
        allow_unk=allow_unk,
    )
    scores = [score for score, _ in expected][:beam_size]
    assert [one.final_score for one in result.hypotheses] == pytest.approx(scores, abs=1e-4)
    for one, (score, tokens) in zip(result.hypotheses, expected, strict=False):
        near = [other for other in scores if abs(other - score) < 1e-4]
        assert tuple(one.tokens) == tokens or len(near) > 1
