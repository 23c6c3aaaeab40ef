"""Requests cannot ask for everything: there is a message, and neighbours notice nothing."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import processors
from support.built_in_models import saved
from support.search_models import random_model

MOST = 16_384
MANY = [3] * (MOST + 1)
REQUESTS = {
    "prefix": dict(prefix=MANY),
    "target": dict(target=MANY),
    "prefix and target": dict(prefix=MANY[: MOST // 2], target=MANY[: MOST // 2]),
    "max_length": dict(max_length=MOST + 1),
    "prefix and max_length": dict(prefix=[3] * 9, max_length=MOST - 8),
    "32 bits": dict(max_length=2**31),
    "64 bits": dict(max_length=2**70, min_length=2**69),
}


@pytest.fixture(scope="module")
def unlimited(tmp_path_factory):
    """Models that have no positions."""
    lstm = pybeam.load_model(saved("rnn", tmp_path_factory.mktemp("rnn")))
    t5 = pybeam.load_model(saved("t5", tmp_path_factory.mktemp("t5")))
    return {"function": random_model(1), "lstm": lstm, "t5": t5}


@pytest.mark.parametrize("name", ["function", "lstm", "t5"])
@pytest.mark.parametrize("request_name", REQUESTS)
def test_lengths_of_models_without_positions(unlimited, name, request_name):
    decoder = pybeam.Decoder(unlimited[name], pybeam.fixed_beam(2, max_length=4))
    plain = pybeam.Request([3, 2], source_id=0)
    long = pybeam.Request([3, 2], source_id=1, **REQUESTS[request_name])
    first, failed, last = decoder.decode([plain, long, plain], on_error="return")
    assert "`max_tokens` of the model" in str(failed.error)
    expected = decoder.decode([plain])[0].hypotheses
    assert first.hypotheses == last.hypotheses == expected


@pytest.mark.parametrize("name", ["lstm", "t5"])
def test_sources_of_models_without_positions(unlimited, name):
    decoder = pybeam.Decoder(unlimited[name], pybeam.greedy(max_length=2))
    for source in (MANY, torch.tensor(MANY)):
        [result] = decoder.decode([source], on_error="return")
        assert f"must have at most {MOST} ids (`max_tokens` of the model)" in str(result.error)


def test_a_model_may_be_given_another_number():
    model = random_model(1)
    model.max_tokens = 6
    decoder = pybeam.Decoder(model, pybeam.greedy())
    limit = pybeam.limits.SourceLimit(100)
    for name, num, asked in (
        ("max_length", "3 + 4", dict(prefix=[3] * 3, max_length=4)),
        ("max_length", "6 + 1", dict(prefix=[3] * 6, max_length=limit)),
        ("target", "3 + 4", dict(prefix=[3] * 3, target=[4] * 3)),
    ):
        [result] = decoder.decode([pybeam.Request([1], **asked)], on_error="return")
        assert str(result.error).startswith(
            f"`prefix` with `{name}` must have at most 6 tokens (`max_tokens` of the model), but has {num};"
        )
    # others are cut where there is no more room, as at positions
    for length in (None, limit):
        for num in (3, 5):
            [result] = decoder.decode([pybeam.Request([1], prefix=[3] * num, max_length=length)])
            assert len(result.hypotheses[0].tokens) <= 6
    with pytest.raises(
        ValueError, match="`max_length` must be at most `max_tokens` of the model, which is 6"
    ):
        pybeam.Decoder(model, pybeam.greedy(max_length=7))
    counted = pybeam.greedy(max_length=6, prefix=pybeam.limits.PrefixRule(False, True, True))
    assert pybeam.Decoder(model, counted).decode([pybeam.Request([1], prefix=[3] * 3)])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pybeam.greedy(max_length=2**31), "`max_length` must be at most 2147483647"),
        (lambda: pybeam.greedy(min_length=2**63), "`min_length` must be at most 2147483647"),
        (lambda: pybeam.diverse(pybeam.greedy(), 2**31, 1.0), "`num_groups` must be 2 to 4096"),
        (lambda: processors.min_length(2**31), "`length` must be at most 2147483647"),
        (lambda: processors.eos_growth(2**70, 1.5), "`start` must be at most 2147483647"),
        (lambda: processors.no_repeat_ngram(2**64), "`n` must be at most 2147483647"),
        (lambda: processors.suppress_tokens_at_start([3], skips=2**31), "`skips` must be at most"),
        (lambda: pybeam.Fifo(2**63), "`n` must be at most 9223372036854775807"),
    ],
)
def test_numbers_of_algorithms(build, message):
    with pytest.raises(ValueError, match=message):
        build()
