"""`load_model` reads every layout of a checkpoint and says what is wrong with the others."""

import json
import pickle
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import pybeam
from pybeam import backends
from pybeam.models import load_model
from pybeam.models.linear import PlainLinear, can_pack
from pybeam.models.weights import WeightReader
from support.built_in_models import parts_of
from support.text_folders import save_network
from support.tiny_models import save_tiny_model


@pytest.fixture
def directory(tmp_path):
    """A tiny M2M100 model."""
    save_tiny_model(tmp_path, "m2m_100")
    return tmp_path


def edit_json(path, **changes):
    """Set these fields; None removes one."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(changes)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def edit_weights(directory, change):
    path = directory / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


@pytest.fixture
def plain(monkeypatch):
    """Weights that a test can read."""
    monkeypatch.setattr("pybeam.models.weights.can_pack", lambda device, dtype: False)


def assert_same_weights(first, second):
    pairs = list(zip(parts_of(first, Tensor), parts_of(second, Tensor), strict=True))
    assert len(pairs) > 50
    for a, b in pairs:
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_shards_give_the_same_model(directory, tmp_path_factory, plain):

    sharded = tmp_path_factory.mktemp("sharded")
    original = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory)
    original.save_pretrained(sharded, max_shard_size="20KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 1
    assert_same_weights(load_model(directory), load_model(sharded))


def test_names_without_prefix_give_the_same_model(directory, tmp_path_factory, plain):
    expected = load_model(directory)

    def strip(weights):
        for name in list(weights):
            weights[name.removeprefix("model.")] = weights.pop(name)

    edit_weights(directory, strip)
    assert_same_weights(load_model(directory), expected)


def test_stored_tables_and_duplicates_are_accepted(directory, plain):
    expected = load_model(directory)

    def add(weights):
        shared = weights["model.shared.weight"]
        for name in ("lm_head.weight", "model.encoder.embed_tokens.weight"):
            weights[name] = shared.clone()
        weights["model.encoder.version"] = torch.tensor([3.0])
        weights["model.encoder.embed_positions._float_tensor"] = torch.zeros(1)

    edit_weights(directory, add)
    model = load_model(directory)
    assert_same_weights(model, expected)
    # equal tables are kept once
    assert model.encoder.token_table.data_ptr() == model.decoder.token_table.data_ptr()
    assert model.output.weight.data_ptr() == model.decoder.token_table.data_ptr()


def test_stored_positions_are_preferred(directory):
    table = torch.randn(40, 24)
    edit_weights(directory, lambda w: w.update({"model.decoder.embed_positions.weights": table}))
    model = load_model(directory)
    assert torch.equal(model.decoder.position_table[:32], table[2:34])
    assert not torch.equal(model.encoder.position_table[:32], table[2:34])


@pytest.mark.parametrize("shape", [(33, 24), (34, 25)])
def test_stored_positions_of_another_shape_are_refused(directory, shape):
    name = "model.encoder.embed_positions.weights"
    edit_weights(directory, lambda w: w.update({name: torch.zeros(shape)}))
    found = re.escape(str(list(shape)))
    with pytest.raises(ValueError, match=rf"`{name}` in .* must be \[34, 24\], but is {found}; "):
        load_model(directory)


def test_output_table_of_its_own_is_used(directory, plain):
    table = torch.randn(45, 24)
    edit_weights(directory, lambda w: w.update({"lm_head.weight": table}))
    model = load_model(directory)
    assert torch.equal(model.output.weight, table)
    assert not torch.equal(model.decoder.token_table, table)


@pytest.mark.parametrize("kept", ["lm_head", "model.encoder.embed_tokens"])
def test_any_name_of_a_tied_table_will_do(directory, plain, kept):
    expected = load_model(directory)
    edit_weights(directory, lambda w: w.update({f"{kept}.weight": w.pop("model.shared.weight")}))
    assert_same_weights(load_model(directory), expected)


def test_fsmt_output_falls_back_to_the_decoder(tmp_path, plain):
    save_tiny_model(tmp_path, "fsmt")
    edit_weights(tmp_path, lambda w: w.pop("model.decoder.output_projection.weight"))
    model = load_model(tmp_path)
    assert torch.equal(model.output.weight, model.decoder.token_table)


def test_zero_logit_bias_costs_nothing(tmp_path, plain):
    save_tiny_model(tmp_path, "bart")
    assert load_model(tmp_path).output.bias is not None
    edit_weights(tmp_path, lambda w: w["final_logits_bias"].zero_())
    assert load_model(tmp_path).output.bias is None


DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", torch.bfloat16])


@DTYPES
def test_dtype_may_be_chosen(directory, plain, dtype):
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    model = load_model(directory, dtype=dtype)
    assert model.dtype == model.weight_dtype == wanted
    assert {weight.dtype for weight in parts_of(model, Tensor)} == {wanted}
    assert model.session(backends.load("reference"))._own.both[0].dtype == wanted


@DTYPES
def test_packed_weights_have_the_dtype_and_activations_float32(directory, dtype):
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if not can_pack(torch.device("cpu"), wanted):
        pytest.skip("there is no C++ extension for this CPU")
    model = load_model(directory, device="cpu", dtype=dtype)
    assert (model.dtype, model.weight_dtype) == (torch.float32, wanted)
    layer = model.decoder.layers[0]
    assert layer.inner._weight.dtype == model.output._weight.dtype == wanted
    assert layer.inner.bias.dtype == layer.inner_norms.before.weight.dtype == torch.float32
    # keys and values are rounded beside weights that are
    kept = torch.bfloat16 if wanted == torch.bfloat16 else torch.float32
    assert model.session(backends.load("reference"))._own.both[0].dtype == kept
    assert ("weights" in repr(model)) == (wanted != torch.float32)


def test_packed_tied_tables_are_kept_once(directory):
    if not can_pack(torch.device("cpu"), torch.float32):
        pytest.skip("there is no C++ extension for this CPU")
    model = load_model(directory, device="cpu")
    assert model.encoder.token_table is model.decoder.token_table is model.output
    # tables of their own are looked up in
    table = torch.randn(45, 24)
    edit_weights(directory, lambda w: w.update({"lm_head.weight": table}))
    model = load_model(directory, device="cpu")
    assert model.encoder.token_table is model.decoder.token_table
    assert isinstance(model.decoder.token_table, torch.Tensor)


@pytest.mark.parametrize("kind", ["m2m_100", "m2m_100-untied"])
def test_every_table_is_converted_once(kind, tmp_path, monkeypatch):
    save_tiny_model(tmp_path, kind)
    shapes, convert = [], WeightReader.matrix

    def counted(self, names, *shape, **given):
        shapes.append(shape)
        return convert(self, names, *shape, **given)

    monkeypatch.setattr(WeightReader, "matrix", counted)
    load_model(tmp_path, device="cpu", dtype="bfloat16")
    assert shapes.count((45, 24)) == (1 if kind == "m2m_100" else 3)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_auto_is_float32_on_a_cpu(directory, plain, stored):
    def cast(weights):
        for name in weights:
            weights[name] = weights[name].to(stored)

    edit_weights(directory, cast)
    model = load_model(str(directory), device="cpu")
    assert model.dtype == torch.float32
    assert isinstance(model.output, PlainLinear)
    assert {weight.dtype for weight in parts_of(model, Tensor)} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "field", "expected"),
    [("config.json", "eos_token_id", 7), ("generation_config.json", "eos_token_id", 9)],
)
def test_generation_config_comes_first(directory, name, field, expected):
    edit_json(directory / "config.json", **{field: 7})
    edit_json(directory / "generation_config.json", **{field: None})
    edit_json(directory / name, **{field: expected})
    assert load_model(directory).eos_id == expected


def test_start_falls_back_to_bos(tmp_path):
    save_tiny_model(tmp_path, "mbart")
    for name in ("config.json", "generation_config.json"):
        edit_json(tmp_path / name, decoder_start_token_id=None, bos_token_id=4)
    assert load_model(tmp_path).start_id == 4


def test_missing_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none is at .*/nowhere"):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "blenderbot"},
            "one of attentional_lstm, bart, .*, gemma3_text, gpt2, .*, umt5, whisper, but is 'blenderbot'; "
            "if transformers knows",
        ),
        ({"model_type": None}, "but is None; other models can be decoded through `pybeam.models.F"),
        ({"d_model": None}, "`d_model` in .*config.json must be a positive integer, but is None"),
        ({"encoder_layers": "two"}, "`encoder_layers` .* but is 'two'"),
        ({"decoder_attention_heads": 5}, "multiple of `decoder_attention_heads`.* 24 and 5"),
        ({"vocab_size": 44}, r"`model.shared.weight` in .* must be \[44, 24\], but is \[45, 24\]"),
        ({"decoder_ffn_dim": 64}, r"layers.0.fc1.weight` in .* must be \[64, 24\], but is \[56"),
        ({"decoder_layers": 4}, "`model.decoder.layers.3.encoder_attn.k_proj.weight` is missing"),
        ({"decoder_layers": 2}, r"`model.decoder.layers.2.* is not part of this model \(26 such"),
        ({"activation_function": "snake"}, "one of relu, gelu, .* but is 'snake'"),
        ({"normalize_before": False}, "`normalize_before` in .* must be True .* but is False"),
        ({"model_type": "mbart"}, "embed_positions.weight` is missing"),
        (
            {"is_encoder_decoder": False},
            "`is_encoder_decoder` in .* must be true .* but is false; if transformers knows",
        ),
    ],
)
def test_wrong_configs(directory, changes, message):
    edit_json(directory / "config.json", **changes)
    with pytest.raises(ValueError, match=message):
        load_model(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"eos_token_id": []},
            r"`eos_token_id` of .* up to 8 below .* = 45, but is \[\]; give those",
        ),
        ({"eos_token_id": 45}, "`eos_token_id` of .* up to 8 below `vocab_size` = 45, but is 45"),
        ({"decoder_start_token_id": "x"}, "`decoder_start_token_id` of .* but is 'x'"),
    ],
)
def test_wrong_generation_configs(directory, changes, message):
    edit_json(directory / "generation_config.json", **changes)
    with pytest.raises(ValueError, match=message):
        load_model(directory)


def test_missing_start(tmp_path):
    save_tiny_model(tmp_path, "mbart")
    for name in ("config.json", "generation_config.json"):
        edit_json(tmp_path / name, decoder_start_token_id=None, bos_token_id=None)
    with pytest.raises(ValueError, match=r"`decoder_start_token_id` .* but is None; add it to"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "config.json is missing in"), ("{", "cannot be read"), ("[1]", "holds list")],
)
def test_broken_config(directory, content, message):
    path = directory / "config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_model(directory)


def test_no_weights(directory):
    (directory / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"neither model.safetensors nor .*; is the download"):
        load_model(directory)


def test_pickles_are_refused_unread(directory):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was read",))

    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"has only pytorch_model.bin, .*run code; `pybeam.load"):
        load_model(directory)


def test_broken_weights(directory):
    (directory / "model.safetensors").write_bytes(b"not a header")
    with pytest.raises(ValueError, match=r"model.safetensors is not a sound safetensors file"):
        load_model(directory)


def test_unknown_tensor(directory):
    edit_weights(directory, lambda w: w.update({"model.decoder.adapter.weight": torch.zeros(1)}))
    with pytest.raises(ValueError, match=r"`model.decoder.adapter.weight` .* \(1 such tensors\)"):
        load_model(directory)


def test_quantised_tensor(directory):
    name = "model.encoder.layers.1.fc2.weight"
    edit_weights(directory, lambda w: w.update({name: torch.zeros(24, 40, dtype=torch.int8)}))
    with pytest.raises(ValueError, match=f"`{name}` .* torch.int8; quantised weights"):
        load_model(directory)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "must have a `weight_map`"),
        ({"weight_map": {"a": "shard.safetensors"}}, "shard.safetensors is missing in .*download"),
        ({"weight_map": {"a": "other.safetensors"}}, "other.safetensors must hold `a`, says"),
    ],
)
def test_broken_shards(directory, index, message):
    (directory / "model.safetensors").rename(directory / "other.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        load_model(directory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "int2"}, "`dtype` must be 'auto' or one of float32, .* but is 'int2'"),
        ({"dtype": torch.float64}, "`dtype` .* but is torch.float64"),
        ({"device": "abacus"}, "`device` must be 'auto' or a device that works, but is 'abacus'"),
    ],
)
def test_wrong_arguments(directory, arguments, message):
    with pytest.raises(ValueError, match=message):
        load_model(directory, **arguments)


def test_repr_names_the_model(directory):
    assert repr(load_model(directory)) == (
        "Transformer(m2m_100, 2+3 layers, d=24, V=45, torch.float32, cpu)"
    )


@pytest.mark.parametrize("kind", ["blenderbot", "gptoss"])
def test_an_architecture_that_is_only_wrapped_is_pointed_to_wrap(kind, tmp_path):
    """The call that the message names is made as it stands."""
    network = save_network(tmp_path, kind)
    with pytest.raises(ValueError, match=r"knows the model, `pybeam\.load") as caught:
        load_model(tmp_path)
    [call] = re.findall(r"`(pybeam\.load\(.*\))`", str(caught.value))
    assert eval(call, {"pybeam": pybeam}).model.vocab_size == network.config.vocab_size
