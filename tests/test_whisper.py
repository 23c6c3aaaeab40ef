"""Whisper as a built-in model beside transformers' own."""

import json
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pybeam
from pybeam import backends
from pybeam.models.speech import SpeechTransformer
from session_driver import straight_line
from speech_models import random_features, save_tiny_speech_model

SOURCES = random_features(6, seed=3)  # all lengths, odd ones too


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whisper")
    return directory, save_tiny_speech_model(directory, eos_nats=4.5, kind="Whisper")


@pytest.fixture
def model(saved, device) -> SpeechTransformer:
    return pybeam.load_model(saved[0], device=device)


@contextmanager
def shortened(original, num_positions: int):
    """transformers insists on as many frames as there are positions: a model that has fewer of them."""
    encoder, config = original.model.encoder, original.config
    table, most = encoder.embed_positions, config.max_source_positions
    encoder.embed_positions = nn.Embedding.from_pretrained(table.weight[:num_positions])
    config.max_source_positions = num_positions
    yield original
    encoder.embed_positions, config.max_source_positions = table, most


@torch.inference_mode()
def test_logits_are_the_originals(saved, model, backend):
    """Encoder states and logits step by step; of a full source, and of shorter ones."""
    assert type(model) is SpeechTransformer
    assert (model.max_positions, model.max_source_positions, model.start_id) == (40, 45, 3)
    session = model.session(backends.load(backend))
    tokens = [model.start_id, 7, 38, 18, 0, 5]
    for num in (2, 14, 90):
        source = torch.randn(num, 6, generator=torch.Generator().manual_seed(num))
        with shortened(saved[1], num // 2) as original:
            out = original(source.t()[None], decoder_input_ids=torch.tensor([tokens]))
        state = session.encoder_states([source]).cpu()
        torch.testing.assert_close(state, out.encoder_last_hidden_state[0], rtol=1e-5, atol=1e-5)
        ours = straight_line(model, backend, source, tokens)
        scale = float(out.logits.abs().max())
        torch.testing.assert_close(ours, out.logits[0], rtol=0, atol=1e-5 * scale)


def test_scores_do_not_depend_on_the_batch(model, device):
    search = pybeam.fixed_beam(4, n_best=4, max_length=8)
    together = pybeam.Decoder(model, search, pybeam.Streaming(4, row_budget=9)).decode(SOURCES)
    alone = [pybeam.Decoder(model, search).decode([one])[0] for one in SOURCES]
    native = backends.resolve("auto", device)
    is_exact = native.__name__.endswith("native") and native.isa() != "generic"
    assert {h.ended for result in together for h in result.hypotheses} == {True, False}
    for ours, expected in zip(together, alone, strict=True):
        assert [h.tokens for h in ours.hypotheses] == [h.tokens for h in expected.hypotheses]
        scores = [[h.score for h in result.hypotheses] for result in (ours, expected)]
        assert scores[0] == (scores[1] if is_exact else pytest.approx(scores[1], rel=1e-5))


def test_files_that_contradict_the_config(saved, tmp_path):
    weights = load_file(saved[0] / "model.safetensors")
    config = json.loads((saved[0] / "config.json").read_text())
    path = tmp_path / "config.json"

    def load(change, extra=()):
        path.write_text(json.dumps(config | change))
        save_file({**weights, **dict(extra)}, tmp_path / "model.safetensors")
        return pybeam.load_model(tmp_path)

    with pytest.raises(ValueError, match=r"conv1.weight.* must be \[24, 7, 3\]"):
        load({"num_mel_bins": 7})
    with pytest.raises(ValueError, match=r"embed_positions.weight.* must be \[46, 24\]"):
        load({"max_source_positions": 46})
    name = "model.encoder.layers.0.self_attn.k_proj.bias"
    with pytest.raises(ValueError, match=r"k_proj.bias.*is not part of this model"):
        load({}, {name: torch.zeros(24)})
    # transformers reads this and scales nothing
    assert load({"scale_embedding": True}).decoder.embedding_scale == 1
    with pytest.raises(ValueError, match=r"at most 45 positions.*91 frames become 46"):
        pybeam.load_model(saved[0]).check(torch.zeros(91, 6))
