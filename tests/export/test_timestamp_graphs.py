"""Whisper's rules for timestamps within a graph give what they give in the engine."""

import pytest

import pybeam
from pybeam import processors
from pybeam.export import export_onnx
from pybeam.speech import whisper_timestamps
from support.onnx_search import assert_agree, hypotheses, load_graph, numbers_of
from support.speech_models import random_features, save_tiny_whisper

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

NO_TIMESTAMPS, VOCAB, SPECIAL = 34, 52, range(29, 34)


@pytest.mark.parametrize(
    ("stage", "max_initial", "seed"),
    [
        ("log_probs", 3, 2),
        *(pytest.param("logits", None, i, marks=pytest.mark.slow) for i in (3, 4)),
    ],
)
def test_timestamps(stage, max_initial, seed, tmp_path):
    save_tiny_whisper(tmp_path / "original", seed, eos_nats=1.0, vocab_size=VOCAB)
    model = pybeam.load_model(tmp_path / "original", device="cpu")
    model = model.without(*model.settings.names)
    rules = [
        processors.suppress_tokens(SPECIAL, stage=stage),
        whisper_timestamps(NO_TIMESTAMPS, max_initial=max_initial, stage=stage),
    ]
    search = pybeam.fixed_beam(5, n_best=5, max_length=14, processors=rules)
    export_onnx(model, tmp_path / "onnx", search)
    graph, sources = load_graph(tmp_path / "onnx"), random_features(8)
    # timestamps of a carried prompt count nothing
    prefixes = [[30, 33], [40, 5, 41, 29, 30, 33]] * 4
    requests = [
        pybeam.Request(source, prefix=prefix)
        for source, prefix in zip(sources, prefixes, strict=True)
    ]
    expected = pybeam.Decoder(model, search).decode(requests)
    found = hypotheses(graph, sources, *numbers_of(search, model), float("nan"), prefix=prefixes)
    assert_agree(found, expected)
    written = [h.tokens for result in expected for h in result.hypotheses]
    assert any(token > NO_TIMESTAMPS for tokens in written for token in tokens[8:])
    assert any(token < 28 for tokens in written for token in tokens[6:])
