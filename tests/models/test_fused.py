"""A stack in one object gives the bits of one call per operator, in every batch and with every team."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import pybeam
from pybeam.models import load_model
from pybeam.models.transformer import running
from pybeam.models.transformer.fused import fused
from support.front_ends import sources
from support.speech_models import random_features, save_tiny_speech_model
from support.threads import THREAD_COUNTS
from support.tiny_models import T5_KINDS, save_tiny_model

# norms before and behind sublayers, with and without final norm and embedding norm, convolutions, relative
# positions, gates
KINDS = ("m2m_100", "mbart", "bart", "marian", "fsmt", "Speech2Text", "Whisper", *T5_KINDS)
DTYPES = ("float32", "bfloat16", "int8", "int4")
# of the weights, and of keys and values
TYPES = (*((dtype, "auto") for dtype in DTYPES), ("float32", "bfloat16"), ("int8", "float32"))


@pytest.fixture(params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path):
    if request.param in ("Speech2Text", "Whisper"):
        save_tiny_speech_model(tmp_path, 0, 2.0, kind=request.param)
    else:
        save_tiny_model(tmp_path, request.param, 0)
    return tmp_path


@pytest.fixture(params=TYPES, ids="-".join)
def model(request: pytest.FixtureRequest, directory):
    if "native" not in pybeam.backends.available():
        pytest.skip("the extension is not built")
    dtype, kept = request.param
    return load_model(directory, device="cpu", dtype=dtype, cache_dtype=kept)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch):
    """Call it and sessions made from then on call the operators of each layer."""

    def switch() -> None:
        monkeypatch.setattr(running, "fused", lambda *_: None)

    return switch


def requests_for(model, num: int) -> list:
    return random_features(num) if model.takes_features else sources(num)


def decoded(model, requests: list, algorithm, schedule) -> list:
    decoder = pybeam.Decoder(model, algorithm, schedule)
    return [
        [(h.tokens, h.score, h.ended) for h in result.hypotheses]
        for result in decoder.decode(requests)
    ]


ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=9),
    "fixed": pybeam.fixed_beam(5, n_best=5, max_length=9),
    "variable": pybeam.variable_beam(4, 1.5, 3, max_length=9),
    "jacobi": pybeam.hybrid_jacobi(3, max_length=9),
}


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bits_of_one_call_per_operator(model, one_by_one, algorithm):
    requests, schedule = requests_for(model, 7), pybeam.Fifo(3)
    found = decoded(model, requests, ALGORITHMS[algorithm], schedule)
    one_by_one()
    assert decoded(model, requests, ALGORITHMS[algorithm], schedule) == found


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(("dtype", "kept"), TYPES)
@pytest.mark.parametrize("kind", ["m2m_100", "bart", "t5", "flan-t5"])
def test_any_team(tmp_path, one_by_one, kind, dtype, kept):
    """Layers that are worth a team of threads, where tiny ones are not."""
    inner = dict(d_ff=512) if "t5" in kind else dict(encoder_ffn_dim=512, decoder_ffn_dim=512)
    sizes = dict(d_model=64, vocab_size=4000, **inner)
    save_tiny_model(tmp_path, kind, 0, **sizes)
    model = load_model(tmp_path, device="cpu", dtype=dtype, cache_dtype=kept)
    requests, schedule = sources(16), pybeam.Batch(16)
    torch.set_num_threads(1)
    expected = decoded(model, requests, ALGORITHMS["fixed"], schedule)
    for num_threads in THREAD_COUNTS[1:]:
        torch.set_num_threads(num_threads)
        assert decoded(model, requests, ALGORITHMS["fixed"], schedule) == expected
    one_by_one()
    assert decoded(model, requests, ALGORITHMS["fixed"], schedule) == expected


@pytest.mark.slow
def test_teams_of_several_callers(tmp_path):
    """Threads of Python that decode with one model at the same time have a team each."""
    sizes = dict(d_model=64, encoder_ffn_dim=512, decoder_ffn_dim=512, vocab_size=4000)
    save_tiny_model(tmp_path, "m2m_100", 0, **sizes)
    model, requests = load_model(tmp_path, device="cpu", dtype="int8"), sources(16)
    expected = decoded(model, requests, ALGORITHMS["fixed"], pybeam.Batch(16))

    def decode(_: int) -> list:
        torch.set_num_threads(2)
        return decoded(model, requests, ALGORITHMS["fixed"], pybeam.Batch(16))

    with ThreadPoolExecutor(3) as pool:
        assert all(found == expected for found in pool.map(decode, range(6)))


@pytest.mark.thinned(most=4)
def test_other_backends_have_no_such_program(model):
    reference, native = map(pybeam.backends.load, ("reference", "native"))
    assert fused(reference, model.decoder, model.output) is None
    # whose layers have a table of biases each
    is_mixed = model.config.model_type == "umt5"
    assert (fused(native, model.decoder, model.output) is None) == is_mixed
