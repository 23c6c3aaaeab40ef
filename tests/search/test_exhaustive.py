"""A beam that is wide enough for every sequence finds the best of all."""

import math

import pytest

import pybeam
from support.search_models import random_model
from support.search_oracles import every_sequence, ranked_log_probs


@pytest.mark.thinned()
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
