"""Whatever a program sends to another process arrives there as it was, or is refused with the remedy."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import pybeam
from pybeam import processors
from pybeam.serving import QueueFull
from pybeam_client import ServerError
from support.built_in_models import saved
from support.search_models import random_model

ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=5),
    "fixed": pybeam.fixed_beam([2, 4], n_best=2, scoring=pybeam.scoring.gnmt(0.6)),
    "variable": pybeam.variable_beam(5, threshold=1.5, max_candidates=3),
    "optimal": pybeam.optimal_beam(3, 0.1),
    "huang": pybeam.huang_beam(3),
    "shrinking": pybeam.shrinking_beam(3),
    "stochastic": pybeam.stochastic_beam(3, seed=4),
    "diverse": pybeam.diverse(pybeam.fixed_beam(2), 2, 0.5),
    "jacobi": pybeam.jacobi(max_length=5),
    "with processors": pybeam.fixed_beam(
        3,
        processors=[
            processors.repetition_penalty(1.2),
            processors.suppress_sequences([[3, 4], [5]]),
            processors.no_repeat_ngram(2),
        ],
    ),
    "as others": pybeam.compat.huggingface.beam_search(3),
}


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms(name):
    algorithm = ALGORITHMS[name]
    other = again(algorithm)
    assert repr(other) == repr(algorithm)
    model, requests = random_model(1, eos_bonus=0.5), [[1, 2], [3]]
    expected = pybeam.Decoder(model, algorithm).decode(requests)
    assert pybeam.Decoder(model, other).decode(requests) == expected


def test_requests_and_results():
    request = pybeam.Request(
        [1, 2],
        prefix=[3],
        id="a",
        width=2,
        max_length=pybeam.limits.SourceLimit(2.0),
        processors=[],
    )
    assert vars(again(request)) == vars(request)
    decoder = pybeam.Decoder(random_model(1), pybeam.fixed_beam(3, max_length=4), log_probs=True)
    results = decoder.decode([request, pybeam.Request([1], width=0)], on_error="return")
    first, failed = again(results)
    assert first == results[0]
    assert str(failed.error) == str(results[1].error)


@pytest.mark.parametrize(
    "error",
    [
        pybeam.DecodeError([pybeam.Result(0, "a", [], "error", error=ValueError("why"))]),
        pybeam.TranscribeError(3, "a", "no such file"),
        QueueFull("max_waiting", 3, 4, 1.5),
        ServerError(429, "later", None, 2.0),
        pybeam.arguments.ArgumentError("width", "is wrong"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors(error):
    other = again(error)
    assert str(other) == str(error)
    assert vars(other).keys() == vars(error).keys()


@pytest.mark.parametrize("kind", ["m2m_100", "rnn", "causal-qwen2", "Whisper", "ensemble"])
def test_models_stay_where_they_are(kind, tmp_path):
    path = saved(kind, tmp_path)
    model = pybeam.load_model(path)
    decoder = pybeam.Decoder(model, pybeam.greedy())
    for one in (model, decoder):
        for act in (pickle.dumps, copy.deepcopy):
            with pytest.raises(
                TypeError, match=rf"a {type(one).__name__} neither pickles .* load it in"
            ):
                act(one)
        assert vars(copy.copy(one)).keys() == vars(one).keys()


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("default", ["meta", "cpu"])
@pytest.mark.parametrize("kind", ["m2m_100", "rnn", "causal-qwen2", "Whisper"])
def test_another_default_device_changes_nothing(kind, default, tmp_path):
    path, algorithm = saved(kind, tmp_path), pybeam.fixed_beam(3, max_length=6, n_best=2)
    source = (
        torch.rand(20, pybeam.load_model(path, device="cpu").config.front.num_features)
        if kind == "Whisper"
        else [5, 6, 2]
    )
    usual = pybeam.Decoder(pybeam.load_model(path, device="cpu"), algorithm)
    expected = usual.decode([source])
    target = expected[0].hypotheses[0].tokens
    torch.set_default_device(default)
    try:
        decoder = pybeam.Decoder(pybeam.load_model(path, "cpu"), algorithm)
        assert decoder.decode([source]) == expected
        assert list(decoder.stream(iter([source]))) == expected
        scored = decoder.score([source], [target])
    finally:
        torch.set_default_device(None)
    assert scored == usual.score([source], [target])
