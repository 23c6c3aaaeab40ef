"""Wav2Vec2 from its checkpoint: the log-probabilities of transformers, whatever is in the batch."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from pybeam import ctc
from support.threads import every_thread_count
from support.wav2vec2_files import sounds, write_wav2vec2

pytest.importorskip("transformers")

CONFIGS = {
    "base": {},
    "large": dict(feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True),
    "norms behind": dict(feat_extract_norm="layer", num_conv_pos_embeddings=7),
    "norms before": dict(do_stable_layer_norm=True, conv_bias=True, hidden_act="relu"),
}
SOUNDS = sounds(800, 1503, 5, 320, 64)


@pytest.fixture
def folder(tmp_path):
    write_wav2vec2(tmp_path)
    return tmp_path


@pytest.mark.thinned()
@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_are_those_of_transformers(name, tmp_path, backend):
    network = write_wav2vec2(tmp_path, **CONFIGS[name])
    model = ctc.load_model(tmp_path, backend=backend)
    for sound, found in zip(SOUNDS, model.log_probs(SOUNDS), strict=True):
        assert len(found) == model.num_frames(len(sound))
        if len(found):
            with torch.no_grad():
                expected = network(sound[None]).logits.log_softmax(-1)[0]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ["base", "large"])
def test_a_recording_alone_is_heard_as_beside_others(name, tmp_path):
    write_wav2vec2(tmp_path, **CONFIGS[name])
    model = ctc.load_model(tmp_path)
    together = model.log_probs(SOUNDS)
    for _ in every_thread_count():
        for sound, expected in zip(SOUNDS, together, strict=True):
            assert torch.equal(model.log_probs([sound])[0], expected)
    assert model.log_probs([]) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rounded_weights_change_little(dtype, folder):
    exact, rounded = (
        ctc.load_model(folder, dtype=one).log_probs(SOUNDS[:2]) for one in ("float32", dtype)
    )
    for one, other in zip(exact, rounded, strict=True):
        assert 0 < (one - other).abs().max() < 0.5


def test_older_names_of_the_normed_weight(folder):
    expected = ctc.load_model(folder).log_probs(SOUNDS[:1])[0]
    path = folder / "model.safetensors"
    weights = load_file(path)
    new = "parametrizations.weight.original"
    for i, old in enumerate(("weight_g", "weight_v")):
        name = f"wav2vec2.encoder.pos_conv_embed.conv.{new}{i}"
        weights[name.replace(f"{new}{i}", old)] = weights.pop(name)
    save_file(weights, path)
    assert torch.equal(ctc.load_model(folder).log_probs(SOUNDS[:1])[0], expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(model_type="hubert"), "`model_type` .* must be 'wav2vec2', but is 'hubert'"),
        (dict(add_adapter=True), "`add_adapter` .* must be None or False, but is True"),
        (dict(hidden_size=30), "`num_attention_heads` .* must be a divisor of `hidden_size`, 30"),
        (dict(conv_stride=[5, 2]), "`conv_kernel` .* must be as many as"),
        (dict(conv_dim=[16, 0, 16]), "`conv_dim` .* must be a list of positive integers"),
        (dict(pad_token_id=99), "`pad_token_id` .* must be the blank, a token below 11"),
        (dict(vocab_size=12), "lm_head.weight"),
        (dict(feat_extract_norm="batch"), "`feat_extract_norm` .* must be one of group, layer"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(changes, message, folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        ctc.load_model(folder)


def test_bad_sound_is_refused(folder):
    model = ctc.load_model(folder)
    for sound in (torch.zeros(2, 800), torch.full((800,), torch.nan)):
        with pytest.raises(ValueError, match="must be finite samples"):
            model.log_probs([sound])
    with pytest.raises(FileNotFoundError, match="must be a folder with a model of CTC"):
        ctc.load_model(folder / "none")
