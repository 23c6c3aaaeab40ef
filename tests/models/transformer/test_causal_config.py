"""Configs of decoder-only models: old and new layouts say the same, and what is not understood is refused."""

import json
from dataclasses import replace

import pytest
import torch

import pybeam
from pybeam.models.transformer.causal_config import read_config
from pybeam.models.transformer.families import FAMILIES
from pybeam.text.tokenizer import DECODER_ONLY

transformers = pytest.importorskip("transformers")

from support.causal_models import KINDS, OTHER_KINDS, save_tiny_causal  # noqa: E402


@pytest.fixture(scope="module", params=KINDS)
def directory(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    save_tiny_causal(directory, request.param)
    return directory


@pytest.fixture
def changed(directory, tmp_path):
    """A function that returns a directory with another config; None deletes a field."""

    def change(**fields):
        config = json.loads((directory / "config.json").read_text())
        config.update(fields)
        kept = {name: value for name, value in config.items() if value is not ...}
        (tmp_path / "config.json").write_text(json.dumps(kept))
        return tmp_path

    return change


def test_tokenizers_know_the_same_types():
    assert set(DECODER_ONLY) == set(FAMILIES)


def test_eos_may_be_several(changed):
    directory = changed(eos_token_id=[3, 4])
    assert read_config(directory).eos_ids == (3, 4)
    (directory / "generation_config.json").write_text('{"eos_token_id": [5, 4, 3]}')
    assert read_config(directory).eos_ids == (5, 4, 3)


def old_layout(model_type: str, scaling: dict | None):
    """The fields of transformers 4."""
    fields = dict(rope_parameters=..., rope_theta=3000.0, rope_scaling=scaling)
    if model_type == "gemma3_text":
        # there transformers 5 does not read the name `type`
        fields["rope_scaling"] = scaling and {"rope_type": scaling.get("type"), **scaling}
        fields["rope_local_base_freq"] = 70.0
    return fields


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"type": "linear", "factor": 3.0},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ],
)
def test_the_old_layout_is_that_of_transformers(changed, scaling):
    config = json.loads((changed() / "config.json").read_text())
    directory = changed(**old_layout(config["model_type"], scaling))
    theirs = transformers.AutoConfig.from_pretrained(directory)
    network = transformers.AutoModelForCausalLM.from_config(theirs)
    rotary, found = network.model.rotary_emb, read_config(directory).frequencies
    if len(found) == 1:
        expected = [(rotary.inv_freq, rotary.attention_scaling)]
    else:
        expected = [
            (getattr(rotary, f"{kind}_inv_freq"), getattr(rotary, f"{kind}_attention_scaling"))
            for kind in ("full_attention", "sliding_attention")
        ]
    for ours, (frequency, factor) in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.short, frequency, rtol=1e-6, atol=0)
        assert ours.factor == pytest.approx(factor)


WRONG = [
    (dict(hidden_act="swiglu", hidden_activation="swiglu"), "hidden_act"),
    (dict(num_key_value_heads=3), "num_attention_heads"),
    (dict(head_dim=7), "head_dim"),
    (dict(num_hidden_layers=0), "num_hidden_layers"),
    (dict(rms_norm_eps="small"), "rms_norm_eps"),
    (dict(tie_word_embeddings="yes"), "tie_word_embeddings"),
    (dict(use_bidirectional_attention=True), "use_bidirectional_attention"),
    (dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
    (dict(quantization_config={"quant_method": "awq"}), "quantization_config"),
    (dict(eos_token_id=None), "eos_token_id"),
    (dict(eos_token_id=45), "eos_token_id"),
    (dict(vocab_size=...), "vocab_size"),
    (dict(rope_parameters="fast"), "rope_parameters"),
    (dict(rope_parameters=..., rope_scaling={"type": "ntk"}), "type"),
    (dict(rope_parameters=..., rope_scaling={"type": "linear", "factor": 0}), "factor"),
    (
        dict(rope_parameters=..., rope_scaling={"type": "longrope", "factor": 2.0}),
        "_factor|rope_type",
    ),
]


@pytest.mark.parametrize(("fields", "name"), WRONG)
def test_what_is_not_understood_is_refused(changed, fields, name):
    with pytest.raises(ValueError, match=name):
        read_config(changed(**fields))


# every file says these; others say what transformers would take anyway
STATED = {
    *("model_type", "vocab_size", "max_position_embeddings", "n_positions"),
    *("eos_token_id", "pad_token_id"),
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("n_embd", "n_layer", "n_head", "ffn_dim"),
    *("num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
}


def facts(directory, config: dict):
    """Return what the reader makes of a config, and its frequencies; None: it is refused."""
    (directory / "config.json").write_text(json.dumps(config))
    try:
        found = read_config(directory)
    except ValueError:
        return None
    frequencies = [part for one in found.frequencies for part in one if part is not None]
    rounded = [torch.as_tensor(part).tolist() for part in frequencies]
    # what the network is, whichever way the table says it
    return replace(found, frequencies=(), family=None), rounded


def filled(directory, config: dict) -> dict:
    """Return a config with every field that transformers takes for a missing one."""
    (directory / "config.json").write_text(json.dumps(config))
    return transformers.AutoConfig.from_pretrained(directory).to_dict()


@pytest.mark.thinned(most=3)
@pytest.mark.parametrize("kind", [*KINDS, *OTHER_KINDS])
def test_a_missing_field_is_that_of_transformers(tmp_path, kind):
    save_tiny_causal(tmp_path, kind)
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    assert facts(tmp_path, config) is not None
    for name in sorted({*config} - STATED):
        shorter = {field: value for field, value in config.items() if field != name}
        assert facts(tmp_path, shorter) == facts(tmp_path, filled(tmp_path, shorter)), name


SCALED = dict(factor=4.0, short_factor=[1.0] * 8, long_factor=[2.0] * 8)
OLD = SCALED | dict(original_max_position_embeddings=64)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        # as in the files of Falcon 7B and 40B
        ("falcon", dict(max_position_embeddings=...)),
        ("falcon, new", dict(num_kv_heads=None, max_position_embeddings=...)),
        ("qwen2", dict(num_key_value_heads=None)),
        # old names
        ("gemma", dict(hidden_act="gelu")),
        ("phi3", dict(rope_parameters=..., rope_scaling=OLD | {"type": "su"})),
        ("phi3", dict(rope_parameters=..., rope_scaling=OLD | {"type": "yarn"})),
        (
            "phi3",
            dict(
                rope_parameters=SCALED | {"rope_type": "longrope"},
                max_position_embeddings=1 << 13,
                original_max_position_embeddings=...,
            ),
        ),
    ],
)
def test_a_published_config_is_read_as_transformers_does(tmp_path, kind, fields):
    save_tiny_causal(tmp_path, kind)
    config = json.loads((tmp_path / "config.json").read_text()) | fields
    config = {field: value for field, value in config.items() if value is not ...}
    found = facts(tmp_path, config)
    assert found is not None and found == facts(tmp_path, filled(tmp_path, config))


REFUSED = [
    ("gpt2", dict(scale_attn_weights=False)),
    ("gpt2", dict(scale_attn_by_inverse_layer_idx=True)),
    ("gpt2", dict(add_cross_attention=True)),
    ("opt", dict(do_layer_norm_before=False)),
    ("opt", dict(word_embed_proj_dim=32)),
    ("opt", dict(_remove_final_layer_norm=True)),
    ("opt", dict(enable_bias=False)),
    ("opt", dict(layer_norm_elementwise_affine=False)),
    ("phi", dict(qk_layernorm=True)),
    ("bloom", dict(apply_residual_connection_post_layernorm=True)),
    ("falcon", dict(alibi=True)),
    ("falcon, new", dict(parallel_attn=False)),
    ("qwen3_moe", dict(use_sliding_window=True)),
]


@pytest.mark.parametrize(("kind", "fields"), REFUSED)
def test_another_network_is_refused_by_the_name_of_its_field(tmp_path, kind, fields):
    save_tiny_causal(tmp_path, kind)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    [name] = fields
    with pytest.raises(ValueError, match=f"`{name}` in .* must be"):
        read_config(tmp_path)


def test_fields_of_some_families(tmp_path):
    save_tiny_causal(tmp_path, "gemma3")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "attn_logit_softcapping": 50.0}))
    with pytest.raises(ValueError, match="attn_logit_softcapping"):
        read_config(tmp_path)
    path.write_text(json.dumps({**config, "layer_types": ["chunked_attention"] * 3}))
    with pytest.raises(ValueError, match="layer_types"):
        read_config(tmp_path)
    kept = {name: value for name, value in config.items() if name != "layer_types"}
    path.write_text(json.dumps({**kept, "sliding_window_pattern": 2}))
    assert read_config(tmp_path).stack.windows == (6, None, 6)
    path.write_text(json.dumps({**config, "model_type": "gptj"}))
    with pytest.raises(ValueError, match=r"gemma3_text(.|\n)*wrap"):
        pybeam.load_model(tmp_path)


def test_a_shard_stays_in_its_folder(tmp_path):
    save_tiny_causal(tmp_path / "model", "llama")
    outside = tmp_path / "outside.safetensors"
    (tmp_path / "model" / "model.safetensors").rename(outside)
    index = {"weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="in its own folder"):
        pybeam.load_model(tmp_path / "model")


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_shards_give_the_same_model(tmp_path, kind):
    network = save_tiny_causal(tmp_path / "one", kind)
    network.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    for dtype in ("float32", "bfloat16", "float16", "int8"):
        models = [pybeam.load_model(tmp_path / name, "cpu", dtype) for name in ("one", "many")]
        outputs = [
            pybeam.Decoder(model, pybeam.fixed_beam(3, max_length=6)).decode([[5, 6], [7] * 20])
            for model in models
        ]
        assert [r.hypotheses for r in outputs[0]] == [r.hypotheses for r in outputs[1]]
