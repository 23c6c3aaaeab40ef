"""Models with int8 weights: what becomes int8, the laws of search, and how near they are to float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pybeam
from pybeam import backends
from pybeam.backends.packing import Quantised, quantise
from pybeam.models import Ensemble, load_model
from pybeam.models.linear import PackedLinear
from support.built_in_models import parts_of
from support.example_model import ALGORITHMS as ON_TEXT
from support.example_model import LINES
from support.front_ends import onnx_model, sources
from support.laws import decoded, essence
from support.paths import MODEL
from support.speech_models import random_features
from support.threads import every_thread_count

# every family, untied tables, gates, the two kinds of convolution, an LSTM and an ensemble
KINDS = (
    "m2m_100",
    "marian-separate",
    "bart-untied",
    "mbart",
    "fsmt",
    "t5",
    "flan-t5",
    "Speech2Text",
    "Whisper",
    "FireRedASR",
    "rnn",
    "causal-qwen3",
    "causal-gemma3",
    "ensemble",
)


@pytest.fixture(scope="module")
def example():
    return load_model(MODEL, dtype="int8")


@pytest.fixture(scope="module")
def lines():
    return pybeam.load_tokenizer(MODEL).encode(LINES)


def requests_for(model, num: int = 9) -> list:
    if not model.takes_features:
        return sources(num)
    return random_features(num, num_features=model.config.sound.num_features)


@pytest.mark.thinned(most=6)
@pytest.mark.parametrize("kind", KINDS)
def test_every_matrix_is_int8_and_nothing_else(kind, directories_of):
    model = load_model(directories_of(kind), dtype="int8")
    for member in model.members if isinstance(model, Ensemble) else [model]:
        assert (member.dtype, member.weight_dtype) == (torch.float32, torch.int8)
        assert "torch.float32, torch.int8 weights" in repr(member)
        parts = parts_of(member)
        layers = [part for part in parts if isinstance(part, PackedLinear)]
        assert len(layers) >= 4
        # decoders alone keep more bits of large inputs
        held = torch.int8 if kind.startswith("causal") else torch.uint8
        assert {layer._weight.dtype for layer in layers} == {held}
        others = [part for part in parts if not isinstance(part, (PackedLinear, Quantised))]
        assert others and {type(part) for part in others} == {torch.Tensor}
        assert {part.dtype for part in others} == {torch.float32}


@pytest.mark.slow
def test_rounded_keys_and_values_change_less_than_int8_does(example, lines):
    """The example model keeps its keys and values in bfloat16."""
    others = [dict(dtype="int8", cache_dtype="float32"), dict(dtype="float32")]
    models = [example, *(load_model(MODEL, device="cpu", **other) for other in others)]
    targets = [
        r.hypotheses[0].tokens for r in pybeam.Decoder(example, pybeam.greedy()).decode(lines)
    ]
    rounded, kept, exact = (
        np.array(
            [
                result.hypotheses[0].score
                for result in pybeam.Decoder(model, pybeam.greedy()).score(lines, targets)
            ]
        )
        for model in models
    )
    assert 0 < np.abs(rounded - kept).mean() < np.abs(kept - exact).mean() < 0.1


def test_the_dtype_may_be_torchs(directories_of):
    assert load_model(directories_of("rnn"), dtype=torch.int8).weight_dtype == torch.int8


def test_weights_are_those_of_the_formula(directories_of):
    """Joined matrices keep the scales of their parts, and a convolution those of its outputs."""
    exact = load_model(directories_of("Speech2Text"), dtype="float32")
    model = load_model(directories_of("Speech2Text"), dtype="int8")

    def pairs():
        yield model.cross_key_value, exact.cross_key_value
        yield model.decoder.layers[1].qkv, exact.decoder.layers[1].qkv
        yield from zip(model.front.layers, exact.front.layers, strict=True)

    for ours, theirs in pairs():
        q, scale = quantise(theirs.weight)
        assert torch.equal(ours.weight, q * scale[:, None])


def test_tied_tables_are_kept_once(directories_of):
    model = load_model(directories_of("m2m_100"), dtype="int8")
    assert model.encoder.token_table is model.decoder.token_table is model.output
    tokens = torch.tensor([3, 44, 0])
    assert torch.equal(model.output.rows(tokens), model.output.weight[tokens])
    untied = load_model(directories_of("marian-separate"), dtype="int8")
    assert isinstance(untied.encoder.token_table, Quantised)
    assert untied.decoder.token_table is untied.output


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_schedule_batch_and_threads(kind, directories_of):
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    model = load_model(directories_of(kind), dtype="int8")
    algorithm = pybeam.variable_beam(4, 3.0, 3, n_best=4, max_length=12)
    schedules = (pybeam.Batch(1), pybeam.Batch(9), pybeam.Streaming(4), pybeam.Fifo(3))
    found = [
        essence(decoded(model, algorithm, schedule, "native", requests_for(model), log_probs=True))
        for schedule, _ in zip(schedules, every_thread_count(), strict=True)
    ]
    assert all(one == found[0] for one in found)
    assert any(len(hypotheses) > 1 for _, hypotheses, *_ in found[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_TEXT)
def test_bits_of_the_example_model(name, example, lines):
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    schedules = (pybeam.Batch(1), pybeam.Batch(8), pybeam.Streaming(4), pybeam.Fifo(3))
    found = [
        [result.hypotheses for result in pybeam.Decoder(example, ON_TEXT[name], one).decode(lines)]
        for one, _ in zip(schedules, every_thread_count(), strict=True)
    ]
    assert all(one == found[0] for one in found)


def test_jacobi_is_greedy(directories_of):
    model = load_model(directories_of("m2m_100"), dtype="int8")
    found = [
        pybeam.Decoder(model, algorithm).decode(sources(9))
        for algorithm in (pybeam.greedy(max_length=20), pybeam.jacobi(max_length=20))
    ]
    for greedy, jacobi in zip(*found, strict=True):
        assert greedy.hypotheses[0].tokens == jacobi.hypotheses[0].tokens


def test_a_prefix_goes_on_as_the_search_did(example, lines):
    decoder = pybeam.Decoder(example, pybeam.greedy(max_length=60))
    found = [result.hypotheses[0].tokens for result in decoder.decode(lines)]
    requests = [
        pybeam.Request(line, prefix=one[:3]) for line, one in zip(lines, found, strict=True)
    ]
    assert [result.hypotheses[0].tokens for result in decoder.decode(requests)] == found


def test_scores_are_those_of_the_search(example, lines):
    decoder = pybeam.Decoder(example, pybeam.greedy(max_length=60), log_probs=True)
    best = [result.hypotheses[0] for result in decoder.decode(lines)]
    scored = decoder.score(lines, [one.tokens for one in best])
    for ours, theirs in zip(scored, best, strict=True):
        assert ours.hypotheses[0].log_probs == theirs.log_probs


def test_attention_is_a_distribution_near_float32s(example, lines):
    exact = load_model(MODEL, dtype="float32")
    found = [
        pybeam.Decoder(model, pybeam.greedy(max_length=60), alignment=True).decode(lines[:4])
        for model in (example, exact)
    ]
    for ours, theirs in zip(*found, strict=True):
        ours, theirs = ours.hypotheses[0], theirs.hypotheses[0]
        assert ours.attention.sum(1) == pytest.approx(1.0, abs=1e-5)
        if ours.tokens == theirs.tokens:
            assert abs(ours.attention - theirs.attention).max() < 0.1


# an input beside a border between two integers is rounded to either, by its last bit
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_finds_nearly_the_same(kind, directories_of):
    pytest.importorskip("pybeam.backends.native", exc_type=ImportError)
    model = load_model(directories_of(kind), dtype="int8")
    algorithm = pybeam.greedy(max_length=6)
    found = [
        pybeam.Decoder(model, algorithm, backend=backend).decode(requests_for(model))
        for backend in ("reference", "native")
    ]
    same = [
        (ours.hypotheses[0], theirs.hypotheses[0])
        for ours, theirs in zip(*found, strict=True)
        if ours.hypotheses[0].tokens == theirs.hypotheses[0].tokens
    ]
    assert len(same) >= len(found[0]) - 1
    for ours, theirs in same:
        assert ours.score == pytest.approx(theirs.score, abs=0.1)


@pytest.mark.slow
def test_the_reference_finds_the_examples_translations(example, lines):
    found = [
        pybeam.Decoder(example, pybeam.greedy(max_length=60), backend=backend).decode(lines[:4])
        for backend in ("reference", "native")
        if backend in pybeam.backends.available()
    ]
    for results in zip(*found, strict=True):
        assert len({tuple(result.hypotheses[0].tokens) for result in results}) == 1


@pytest.mark.slow
def test_models_work_without_the_extension(directories_of, monkeypatch):
    expected = {}
    for kind in ("m2m_100", "Speech2Text", "rnn"):
        model = load_model(directories_of(kind), dtype="int8")
        decoder = pybeam.Decoder(model, pybeam.greedy(max_length=6), backend="reference")
        expected[kind] = [result.hypotheses for result in decoder.decode(requests_for(model))]
    monkeypatch.setattr(backends, "resolve", lambda name, device: backends.load("reference"))
    for kind in expected:
        model = load_model(directories_of(kind), dtype="int8")
        assert isinstance(model.output, PackedLinear)
        decoder = pybeam.Decoder(model, pybeam.greedy(max_length=6))
        found = [result.hypotheses for result in decoder.decode(requests_for(model))]
        assert found == expected[kind]


def test_every_instruction_set_packs_int8(directories_of, isa):
    model = load_model(directories_of("m2m_100"), dtype="int8")
    assert isinstance(model.output, PackedLinear)
    results = pybeam.Decoder(model, pybeam.greedy(max_length=6)).decode(sources(3))
    assert all(result.error is None for result in results)


def test_graphs_have_no_other_dtype(tmp_path_factory):
    model = onnx_model(tmp_path_factory, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"'auto' or 'float32' for ONNX graphs .* torch.int8"):
        load_model(model.config.path.parent, dtype="int8")


def test_it_is_not_exported(directories_of, tmp_path):
    pytest.importorskip("onnx_ir")
    model = load_model(directories_of("m2m_100"), dtype="int8")
    with pytest.raises(
        ValueError, match=r"must be torch.float32, but are torch.int8; load it with"
    ):
        pybeam.export.export_onnx(model, tmp_path)
