"""Keys and values in bfloat16: what is rounded and by default, the laws of search, and who refuses."""

from __future__ import annotations

import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.export import export_onnx
from pybeam.models import Ensemble, load_model
from pybeam.models.transformer import running
from pybeam.models.transformer.layers import Stack
from pybeam.models.transformer.model import Transformer
from support.front_ends import onnx_model, sources
from support.laws import decoded, essence
from support.speech_models import random_features
from support.threads import every_thread_count

KINDS = ("m2m_100", "bart", "Speech2Text", "Whisper", "FireRedASR", "ensemble", "causal-qwen3")
DTYPES = ("float32", "float16", "bfloat16", "int8")
ALGORITHMS = {
    "greedy": pybeam.greedy(max_length=9),
    "fixed": pybeam.fixed_beam(5, n_best=5, max_length=9),
    "variable": pybeam.variable_beam(4, 1.5, 3, n_best=2, max_length=9),
    "jacobi": pybeam.hybrid_jacobi(3, max_length=9),
}


@pytest.fixture
def is_built() -> None:
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)


def members_of(model) -> list:
    return list(model.members) if isinstance(model, Ensemble) else [model]


def requests_for(model, num: int = 7) -> list:
    if not model.takes_features:
        return sources(num)
    return random_features(num, num_features=model.config.sound.num_features)


class Rounded:
    """A linear layer whose results are rounded to bfloat16 and stay float32."""

    def __init__(self, linear) -> None:
        self._linear = linear

    def with_backend(self, backend) -> Rounded:
        return Rounded(self._linear.with_backend(backend))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x).bfloat16().float()


@pytest.fixture
def with_rounded_projections(directories_of, monkeypatch: pytest.MonkeyPatch):
    """Call it: the models whose caches are float32, of keys and values that are bfloat16 numbers.

    From then on sessions call the operators of each layer, and decoders round what they project.
    """
    project = Stack.project

    def rounded(stack: Stack, layer, *given) -> tuple:
        query, key, value = project(stack, layer, *given)
        # an encoder keeps nothing
        if layer.cross is None and not stack.rotary:
            return query, key, value
        return query, key.bfloat16().float(), value.bfloat16().float()

    def made(kind: str, dtype: str):
        monkeypatch.setattr(running, "fused", lambda *_: None)
        monkeypatch.setattr(Stack, "project", rounded)
        model = load_model(directories_of(kind), device="cpu", dtype=dtype, cache_dtype="float32")
        for member in members_of(model):
            if isinstance(member, Transformer):
                member.cross_key_value = Rounded(member.cross_key_value)
        return model

    return made


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_but_keys_and_values_is_rounded(
    kind, dtype, algorithm, backend, directories_of, with_rounded_projections
):
    """To the last bit what a float32 cache of rounded keys and values gives."""
    model = load_model(directories_of(kind), device="cpu", dtype=dtype, cache_dtype="bfloat16")
    given = ALGORITHMS[algorithm], pybeam.Fifo(3), backend, requests_for(model)
    found = essence(decoded(model, *given, log_probs=True))
    expected = decoded(with_rounded_projections(kind, dtype), *given, log_probs=True)
    assert found == essence(expected)


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", KINDS)
def test_rounding_changes_scores(kind, directories_of):
    plain, rounded = (
        load_model(directories_of(kind), device="cpu", cache_dtype=dtype)
        for dtype in ("float32", "bfloat16")
    )
    search, requests = ALGORITHMS["greedy"], requests_for(plain)
    pairs = zip(
        *(pybeam.Decoder(model, search).decode(requests) for model in (plain, rounded)), strict=True
    )
    same = [(a.hypotheses[0], b.hypotheses[0]) for a, b in pairs]
    same = [(a, b) for a, b in same if a.tokens == b.tokens]
    assert len(same) >= len(requests) // 2
    assert any(a.score != b.score for a, b in same)
    for a, b in same:
        assert b.score == pytest.approx(a.score, abs=0.02 * (len(a.tokens) + 1))


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("is_built")
def test_bits_do_not_depend_on_schedule_batch_and_threads(kind, dtype, algorithm, directories_of):
    model = load_model(directories_of(kind), device="cpu", dtype=dtype, cache_dtype="bfloat16")
    requests, search = requests_for(model), ALGORITHMS[algorithm]
    schedules = (pybeam.Batch(1), pybeam.Batch(9), pybeam.Streaming(4), pybeam.Fifo(3))
    found = [
        essence(decoded(model, search, schedule, "native", requests, log_probs=True))
        for schedule, _ in zip(schedules, every_thread_count(), strict=True)
    ]
    assert all(one == found[0] for one in found)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("is_built")
def test_backends_agree(kind, algorithm, directories_of):
    model = load_model(directories_of(kind), device="cpu", cache_dtype="bfloat16")
    requests, search = requests_for(model), ALGORITHMS[algorithm]
    ours, theirs = (
        decoded(model, search, pybeam.Fifo(3), name, requests) for name in ("native", "reference")
    )
    for a, b in zip(ours, theirs, strict=True):
        assert [h.tokens for h in a.hypotheses] == [h.tokens for h in b.hypotheses]
        assert [h.score for h in a.hypotheses] == pytest.approx(
            [h.score for h in b.hypotheses], abs=5e-4
        )


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_alignments_and_scores_of_given_outputs_read_the_same_numbers(
    kind, backend, directories_of, with_rounded_projections
):
    model = load_model(directories_of(kind), device="cpu", cache_dtype="bfloat16")
    requests, search = requests_for(model), pybeam.fixed_beam(3, n_best=2, max_length=7)
    outputs = []
    for each in (model, None):
        each = each or with_rounded_projections(kind, "auto")
        decoder = pybeam.Decoder(each, search, pybeam.Fifo(3), backend, alignment=True)
        results = decoder.decode(requests)
        attention = [h.attention for result in results for h in result.hypotheses]
        targets = [result.hypotheses[0].tokens for result in results]
        scores = [result.hypotheses[0].score for result in decoder.score(requests, targets)]
        outputs.append((attention, scores))
    (attention, scores), (expected_attention, expected_scores) = outputs
    assert scores == expected_scores
    for ours, theirs in zip(attention, expected_attention, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["m2m_100", "Whisper"])
def test_pools_take_half_the_memory(kind, backend, directories_of):
    module, used, most = backends.load(backend), [], []
    for dtype in ("auto", "float32", "bfloat16"):
        model = load_model(directories_of(kind), device="cpu", cache_dtype=dtype)
        session = model.session(module)
        requests = [model.check(one) for one in requests_for(model)]
        session.reserve(len(requests) + 1, 1, 16)
        session.encode(requests, range(len(requests)), range(1, len(requests) + 1))
        own, cross, *_ = session.buffers()
        used.append(own.nbytes + cross.nbytes)
        # all that a step may need for the encoder's 100 positions, and for 16 tokens
        most.append(session.max_bytes(16, 100))
    assert used[0] == used[1] == 2 * used[2] > 0
    assert most[0] == most[1] == 2 * most[2] > 0


@pytest.mark.parametrize("kind", ["m2m_100", "causal-qwen3"])
@pytest.mark.usefixtures("is_built")
def test_weights_that_round_more_have_a_rounded_cache(kind, directories_of):
    """By default; the same option by name changes nothing."""
    expected = dict(zip(DTYPES, ("float32", "float32", "bfloat16", "bfloat16"), strict=True))
    for dtype, name in expected.items():
        model = load_model(directories_of(kind), device="cpu", dtype=dtype)
        assert (model.dtype, model.cache_dtype) == (torch.float32, getattr(torch, name))
        named = load_model(directories_of(kind), device="cpu", dtype=dtype, cache_dtype=name)
        assert ("bfloat16 cache" in repr(model)) == (name == "bfloat16")
        assert repr(named) == repr(model)
        found = [
            essence(pybeam.Decoder(each, ALGORITHMS["fixed"]).decode(sources(3)))
            for each in (model, named)
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_member_takes_it(kind, dtype, directories_of):
    model = load_model(directories_of(kind), device="cpu", cache_dtype=dtype)
    for member in members_of(model):
        assert (member.dtype, member.cache_dtype) == (torch.float32, torch.bfloat16)
        assert "torch.bfloat16 cache, cpu" in repr(member)


@pytest.mark.parametrize("given", ["float16", torch.float16, "int8", "bfloat", 16, None])
def test_other_dtypes_are_refused(given, directories_of):
    message = r"`cache_dtype` must be 'auto' or one of float32, bfloat16, but is"
    with pytest.raises(ValueError, match=message):
        load_model(directories_of("m2m_100"), cache_dtype=given)


@pytest.mark.parametrize("kind", ["rnn", "transformer and rnn"])
def test_an_lstm_refuses_it(kind, directories_of):
    paths = [*(directories_of("m2m_100") if kind != "rnn" else []), *directories_of("rnn")]
    message = r"`cache_dtype` must be 'auto' for .*rnn, but is torch.bfloat16; only built-in"
    with pytest.raises(ValueError, match=message):
        load_model(paths, cache_dtype="bfloat16")


def test_onnx_graphs_refuse_it(tmp_path_factory, directories_of):
    model = onnx_model(tmp_path_factory, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"`cache_dtype` must be 'auto' for .*ONNX graphs"):
        load_model(model.config.path.parent, cache_dtype="bfloat16")


def test_a_model_that_computes_in_16_bits_has_a_cache_of_them(directories_of, monkeypatch):
    monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)
    path = directories_of("m2m_100")
    for dtype in ("bfloat16", "float16"):
        model = load_model(path, device="cpu", dtype=dtype)
        assert model.cache_dtype == model.dtype == getattr(torch, dtype)
    load_model(path, device="cpu", dtype="bfloat16", cache_dtype="bfloat16")
    for dtype, cache in (("bfloat16", "float32"), ("float16", "bfloat16")):
        message = rf"`cache_dtype` must be 'auto' for a model that computes in torch.{dtype}"
        with pytest.raises(ValueError, match=message):
            load_model(path, device="cpu", dtype=dtype, cache_dtype=cache)


def test_a_float32_model_on_a_gpu_refuses_it(directories_of):
    model = load_model(directories_of("m2m_100"), device="cpu")
    model.device = torch.device("cuda")
    with pytest.raises(ValueError, match=r"computes in torch.float32 on cuda, but is torch.bfloat"):
        model.with_cache(torch.bfloat16)


def test_it_is_not_exported(tmp_path, directories_of):
    pytest.importorskip("onnx_ir")
    model = load_model(directories_of("bart"), device="cpu", cache_dtype="bfloat16")
    with pytest.raises(ValueError, match=r"the cache of `model` must be torch.float32, but is"):
        export_onnx(model, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
