"""T5 and its kin: what `generate` finds, how distances become biases, and what their configs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

import pybeam
from pybeam.compat import huggingface
from pybeam.export import export_onnx
from pybeam.models import load_model
from pybeam.models.linear import can_pack
from pybeam.models.transformer.config import read_config
from pybeam.models.transformer.relative import RelativeBias, RelativePositions, bucket_of
from support.threads import every_thread_count
from support.tiny_models import T5_KINDS, save_tiny_model, tiny_model

SOURCES = [[5, 6, 7, 8, 9], [4], [9, 30, 11, 4, 4, 20, 21, 8, 7] * 3, [33, 12]]


@pytest.fixture(scope="module", params=T5_KINDS)
def pair(request, tmp_path_factory):
    """The original and ours, with EOS far up or far down in the logits, so that it is often chosen."""
    directory = tmp_path_factory.mktemp(request.param)
    original = tiny_model(request.param, seed=3)
    with torch.no_grad():
        original.lm_head.weight[original.config.eos_token_id] *= 2
    original.save_pretrained(directory)
    return original, load_model(directory)


def change_config(directory: Path, **changes) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: v for name, v in config.items() if v != "absent"}))


def of_generate(original, source: list[int], **options) -> list[tuple[list[int], float]]:
    """Tokens and scores of what `generate` returns for one source."""
    with torch.inference_mode():
        out = original.generate(
            input_ids=torch.tensor([source]),
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    eos = original.generation_config.eos_token_id
    ends = set(eos if isinstance(eos, list) else [eos])
    found = []
    for line in out.sequences[:, 1:].tolist():
        end = next((t for t, token in enumerate(line) if token in ends), len(line))
        found.append(line[:end])
    scores = getattr(out, "sequences_scores", None)
    return list(zip(found, [0.0] if scores is None else scores.tolist(), strict=True))


@pytest.mark.thinned(most=2)
def test_greedy_is_generates(pair):
    original, model = pair
    decoder = pybeam.Decoder(model, pybeam.greedy(max_length=20))
    for source, result in zip(SOURCES, decoder.decode(SOURCES), strict=True):
        [(tokens, _)] = of_generate(original, source, num_beams=1, max_new_tokens=20)
        assert result.hypotheses[0].tokens == tokens


@pytest.mark.thinned(most=1)
def test_beams_are_generates(pair):
    original, model = pair
    search = huggingface.beam_search(4, num_return_sequences=4, max_new_tokens=20)
    for source, result in zip(SOURCES, pybeam.Decoder(model, search).decode(SOURCES), strict=True):
        expected = of_generate(
            original, source, num_beams=4, num_return_sequences=4, max_new_tokens=20
        )
        assert [h.tokens for h in result.hypotheses] == [tokens for tokens, _ in expected]
        scores = [score for _, score in expected]
        assert [h.final_score for h in result.hypotheses] == pytest.approx(scores, abs=1e-5)


def test_several_tokens_may_end_an_output(tmp_path):
    original = save_tiny_model(tmp_path, "t5")
    original.generation_config.eos_token_id = [1, 9, 20, 31]
    original.generation_config.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.eos_ids == (1, 9, 20, 31)
    search = huggingface.beam_search(3, num_return_sequences=3, max_new_tokens=20)
    for source, result in zip(SOURCES, pybeam.Decoder(model, search).decode(SOURCES), strict=True):
        expected = of_generate(
            original, source, num_beams=3, num_return_sequences=3, max_new_tokens=20
        )
        assert [h.tokens for h in result.hypotheses] == [tokens for tokens, _ in expected]


@pytest.mark.thinned(most=2)
def test_schedules_and_threads_change_no_bit(pair):
    _, model = pair
    if not can_pack(torch.device("cpu"), torch.float32) or model.device.type != "cpu":
        pytest.skip("only packed weights promise bits")
    found = []
    schedules = (pybeam.Batch(1), pybeam.Batch(9), pybeam.Streaming(2), pybeam.Fifo(3))
    for schedule, _ in zip(schedules, every_thread_count(), strict=True):
        decoder = pybeam.Decoder(model, pybeam.fixed_beam(5, n_best=5, max_length=12), schedule)
        results = decoder.decode(SOURCES)
        found.append([[(h.tokens, h.score) for h in result.hypotheses] for result in results])
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "furthest"), [(32, 128), (8, 12), (4, 3), (64, 700)])
def test_buckets_are_those_of_transformers(num_buckets, furthest, is_causal):
    distance = torch.arange(-2000, 2001)
    expected = T5Attention._relative_position_bucket(
        -distance, not is_causal, num_buckets, furthest
    )
    relative = RelativePositions(num_buckets, furthest)
    assert torch.equal(bucket_of(distance, relative, is_causal), expected)
    # and a table that ends at the furthest distance has them all
    weight = torch.randn(num_buckets, 3)
    table, origin = RelativeBias.of_buckets(weight, relative, is_causal)
    column = (distance + origin).clamp(0, table.shape[1] - 1)
    assert torch.equal(table[:, column], weight[expected].t())


@pytest.mark.parametrize(
    ("kind", "changes", "is_scaled"),
    [
        ("t5", dict(scale_decoder_outputs="absent", tie_word_embeddings="absent"), True),
        ("t5", dict(scale_decoder_outputs="absent", tie_word_embeddings=False), False),
        ("t5", dict(scale_decoder_outputs=False, tie_word_embeddings=True), False),
        ("mt5", dict(tie_word_embeddings=True), False),
        ("umt5", dict(tie_word_embeddings=True), True),
        ("umt5", dict(scale_decoder_outputs="absent", tie_word_embeddings=False), False),
    ],
)
def test_when_outputs_are_scaled(tmp_path, kind, changes, is_scaled):
    save_tiny_model(tmp_path, kind)
    change_config(tmp_path, **changes)
    assert read_config(tmp_path / ".").output_scale == (24**-0.5 if is_scaled else 1.0)


def test_defaults_are_those_of_the_family(tmp_path):
    """Old files name little."""
    save_tiny_model(tmp_path, "t5")
    (tmp_path / "generation_config.json").unlink()
    absent = ("num_decoder_layers", "layer_norm_epsilon", "feed_forward_proj", "eos_token_id")
    absent += ("relative_attention_num_buckets", "relative_attention_max_distance")
    absent += ("decoder_start_token_id", "pad_token_id")
    change_config(tmp_path, **dict.fromkeys(absent, "absent"))
    config = read_config(tmp_path)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (3, 3)
    assert (config.norm_epsilon, config.activation, config.is_gated) == (1e-6, "relu", False)
    assert config.relative == RelativePositions(32, 128)
    assert (config.start_id, config.eos_id, config.pad_id) == (0, 1, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(d_kv=None), "`d_kv` in .*config.json must be a positive integer, but is None"),
        (dict(feed_forward_proj="gated-snake"), "`feed_forward_proj` in .* but is 'snake'"),
        (dict(feed_forward_proj="wide-gelu"), "or 'gated-' and an activation, but is 'wide-gelu'"),
        (dict(relative_attention_max_distance=4), "more than half of it, but they are 8 and 4"),
        (dict(relative_attention_num_buckets=16), r"bias.weight` in .* must be \[16, 4\]"),
        (dict(eos_token_id=45), "below `vocab_size` = 45, but is 45"),
        (dict(decoder_start_token_id=-1), "`decoder_start_token_id` must be a token below"),
        (dict(num_heads=3), r"must be \[30, 24\], but is \[40, 24\]"),
    ],
)
def test_wrong_configs(tmp_path, changes, message):
    save_tiny_model(tmp_path, "t5")
    (tmp_path / "generation_config.json").unlink()
    change_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


def test_it_is_not_exported(tmp_path):
    save_tiny_model(tmp_path, "t5")
    with pytest.raises(ValueError, match="but is t5, whose positions are relative"):
        export_onnx(load_model(tmp_path, device="cpu"), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
