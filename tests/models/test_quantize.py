"""Directories that `pybeam.quantize` writes: the same model in half the space, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import pybeam
from pybeam.backends.packing import INTEGERS, quantise
from pybeam.cli import main
from pybeam.models import Ensemble, load_model
from pybeam.models.linear import PackedLinear
from support.built_in_models import bytes_of, saved
from support.example_model import LINES
from support.front_ends import onnx_model, sources
from support.paths import MODEL
from support.speech_models import random_features, save_tiny_whisper
from support.tiny_models import save_tiny_model

KINDS = (
    *("m2m_100", "marian-separate", "bart-untied", "fsmt", "t5", "mt5"),
    *("Speech2Text", "Whisper", "FireRedASR", "rnn"),
    *("causal-qwen3", "causal-llama", "causal-gemma3", "causal-gpt2", "causal-mixtral"),
)


@pytest.fixture(scope="module")
def quantised_example(tmp_path_factory):
    directory = tmp_path_factory.mktemp("quantised") / "bible"
    pybeam.quantize(MODEL, directory)
    return directory


@pytest.fixture
def tiny(tmp_path):
    """A tiny model, quantised."""
    save_tiny_model(tmp_path / "tiny", "marian-separate")
    pybeam.quantize(tmp_path / "tiny", tmp_path / "quantised")
    return tmp_path / "quantised"


def edit(directory, change) -> None:
    path = directory / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def found(model) -> list:
    requests = (
        random_features(5, num_features=model.config.sound.num_features)
        if model.takes_features
        else sources(5)
    )
    algorithm = pybeam.fixed_beam(3, n_best=3, max_length=8)
    return [
        [(h.tokens, h.score) for h in result.hypotheses]
        for result in pybeam.Decoder(model, algorithm, pybeam.Batch(2)).decode(requests)
    ]


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize("dtype", ["auto", "int8", torch.int8, "int4", torch.int4])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_model_that_is_quantised_on_load(kind, dtype, tmp_path):
    [directory] = saved(kind, tmp_path / kind)
    made = "int8" if dtype == "auto" else dtype
    pybeam.quantize(directory, tmp_path / "quantised", dtype=made)
    for path in directory.iterdir():  # it needs none of them
        path.rename(tmp_path / path.name)
    ours = load_model(tmp_path / "quantised", dtype=dtype)
    theirs = load_model(tmp_path, dtype=made)
    assert ours.weight_dtype == theirs.weight_dtype
    assert ours.weight_dtype in INTEGERS
    assert found(ours) == found(theirs)


def test_an_ensemble_of_quantised_models(tmp_path):
    directories = saved("ensemble", tmp_path)
    names = [tmp_path / f"quantised-{i}" for i in range(2)]
    for directory, name in zip(directories, names, strict=True):
        pybeam.quantize(directory, name)
    model = load_model(names)
    assert isinstance(model, Ensemble)
    assert found(model) == found(load_model(directories, dtype="int8"))
    assert found(model) == found(load_model([names[0], directories[1]], dtype="int8"))


def test_the_layout(tmp_path):
    """Integers under the old names, scales beside them, and all else as it was."""
    [directory] = saved("Speech2Text", tmp_path / "float")
    pybeam.quantize(directory, tmp_path / "quantised")
    before = load_file(directory / "model.safetensors")
    after = load_file(tmp_path / "quantised" / "model.safetensors")
    is_matrix = {
        name: weight.ndim > 1 and "embed_positions" not in name for name, weight in before.items()
    }
    for name, weight in before.items():
        if not is_matrix[name]:
            assert torch.equal(after.pop(name), weight)
            continue
        q, scale = quantise(weight)
        assert torch.equal(after.pop(name), q) and torch.equal(after.pop(f"{name}.scale"), scale)
        assert (q.flatten(1) * scale[:, None] - weight.flatten(1)).abs().max() <= scale.max() / 1.99
    assert not after
    assert sum(is_matrix.values()) > 20
    with safe_open(tmp_path / "quantised" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_the_other_files_are_copied(quantised_example):
    names = {path.name for path in quantised_example.iterdir()}
    assert names == {path.name for path in MODEL.iterdir()}
    for name in names - {"config.json", "model.safetensors"}:
        assert (quantised_example / name).read_bytes() == (MODEL / name).read_bytes()
    config = json.loads((quantised_example / "config.json").read_text())
    assert config.pop("quantization_config") == {"quant_method": "pybeam", "dtype": "int8"}
    assert config == json.loads((MODEL / "config.json").read_text())
    assert sorted(quantised_example.parent.iterdir()) == [quantised_example]


def test_a_whole_whisper_directory_transcribes(tmp_path):
    save_tiny_whisper(tmp_path / "whisper")
    pybeam.quantize(tmp_path / "whisper", tmp_path / "quantised")
    assert (tmp_path / "quantised" / "preprocessor_config.json").exists()
    assert pybeam.load_tokenizer(tmp_path / "quantised")
    assert found(load_model(tmp_path / "quantised"))


def test_weights_of_other_formats_hidden_files_and_folders_stay_behind(tmp_path):
    directory = tmp_path / "float"
    save_tiny_model(directory, "m2m_100")
    for name in ("pytorch_model.bin", "flax_model.msgpack", ".gitattributes"):
        (directory / name).write_text("x")
    (directory / ".git").mkdir()
    pybeam.quantize(directory, tmp_path / "quantised")
    names = {path.name for path in (tmp_path / "quantised").iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors"}


def test_shards_and_unused_duplicates(tmp_path):
    directory, sharded = tmp_path / "float", tmp_path / "sharded"
    save_tiny_model(directory, "m2m_100")
    original = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory)
    original.save_pretrained(sharded, max_shard_size="20KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 1
    edit(directory, lambda w: w.update({"lm_head.weight": w["model.shared.weight"].clone()}))
    for name in ("float", "sharded"):
        pybeam.quantize(tmp_path / name, tmp_path / f"{name}-quantised")
    assert not list((tmp_path / "sharded-quantised").glob("*index*"))
    ours, theirs = (load_model(tmp_path / f"{name}-quantised") for name in ("float", "sharded"))
    assert found(ours) == found(theirs)
    assert ours.output is ours.encoder.token_table


def test_an_empty_folder_is_filled_and_another_is_not_touched(tmp_path):
    save_tiny_model(tmp_path / "tiny", "m2m_100")
    (tmp_path / "empty").mkdir()
    pybeam.quantize(tmp_path / "tiny", tmp_path / "empty")
    before = (tmp_path / "empty" / "model.safetensors").read_bytes()
    (tmp_path / "file").write_text("x")
    for name in ("empty", "file", "tiny"):
        with pytest.raises(ValueError, match=rf"`output` .* but .*{name} is not; name another"):
            pybeam.quantize(tmp_path / "tiny", tmp_path / name)
    assert (tmp_path / "empty" / "model.safetensors").read_bytes() == before


def test_nothing_is_left_of_what_fails(tmp_path, monkeypatch):
    save_tiny_model(tmp_path / "tiny", "m2m_100")

    def fail(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("pybeam.export.quantised._write_matrix", fail)
    with pytest.raises(KeyboardInterrupt):
        pybeam.quantize(tmp_path / "tiny", tmp_path / "quantised")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_what_cannot_be_quantised(tmp_path, tmp_path_factory, tiny):
    with pytest.raises(FileNotFoundError, match=r"none is at .*/nowhere"):
        pybeam.quantize(tmp_path / "nowhere", tmp_path / "output")
    with pytest.raises(ValueError, match="is quantised already; load it as it is"):
        pybeam.quantize(tiny, tmp_path / "output")
    with pytest.raises(ValueError, match="`dtype` must be 'int8' or 'int4', but is 'float16'"):
        pybeam.quantize(tmp_path / "tiny", tmp_path / "output", dtype="float16")
    graphs = onnx_model(tmp_path_factory, torch.device("cpu")).config.path.parent
    with pytest.raises(ValueError, match="holds ONNX graphs; quantise the directory that"):
        pybeam.quantize(graphs, tmp_path / "output")
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_must_be_finite(value, tmp_path):
    name = "model.encoder.layers.0.fc1.weight"
    save_tiny_model(tmp_path / "tiny", "m2m_100")
    edit(tmp_path / "tiny", lambda w: w[name][3, 4].fill_(value))
    with pytest.raises(
        ValueError, match=rf"`{name}` in .*safetensors must be finite, but has NaN or"
    ):
        load_model(tmp_path / "tiny", dtype="int8")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int4"])
def test_another_dtype_is_refused(dtype, tiny):
    with pytest.raises(
        ValueError, match=rf"`dtype` must be 'auto' or torch.int8 for .* torch.{dtype}; load"
    ):
        load_model(tiny, dtype=dtype)


NAME = "model.decoder.layers.1.fc2.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(f"{NAME}.scale"), f"`{NAME}.scale` is missing in the weights of"),
        (lambda w: w.pop(NAME), f"`{NAME}.scale` in .* is the scale of `{NAME}`, which is missing"),
        (
            lambda w: w.update({NAME: w[NAME][1:].clone()}),
            rf"`{NAME}` in .* must be \[24, 56\], but is \[23, 56\]",
        ),
        (
            lambda w: w.update({f"{NAME}.scale": torch.ones(3)}),
            rf"`{NAME}.scale` in .* must be \[24\], but is \[3\]",
        ),
        (
            lambda w: w.update({NAME: w[NAME].float()}),
            f"`{NAME}` in .* must be torch.int8, as config.json says, but is torch.float32",
        ),
        (
            lambda w: w.update({f"{NAME}.scale": w[f"{NAME}.scale"].half()}),
            f"`{NAME}.scale` in .* must be torch.float32, but is torch.float16",
        ),
        (
            lambda w: w[f"{NAME}.scale"].neg_(),
            f"`{NAME}.scale` in .* must be finite and at least 0",
        ),
        (lambda w: w[f"{NAME}.scale"][3].fill_(float("nan")), f"`{NAME}.scale` .* finite and at"),
        (lambda w: w[NAME][0, 0].fill_(-128), f"`{NAME}` in .* must be -127 to 127, but has -128"),
        (
            lambda w: w.update(
                {"model.decoder.layers.1.fc2.bias": torch.ones(24, dtype=torch.int8)}
            ),
            "`model.decoder.layers.1.fc2.bias` in .* must be a float tensor, but is torch.int8",
        ),
        (
            lambda w: w.update({"adapter.weight": w[NAME], "adapter.weight.scale": torch.ones(24)}),
            r"`adapter.weight` in .* is not part of this model \(2 such tensors\)",
        ),
    ],
)
def test_bad_files(change, message, tiny):
    def changed(weights):
        change(weights)
        for name in weights:
            weights[name] = weights[name].clone()

    edit(tiny, changed)
    with pytest.raises(ValueError, match=message):
        load_model(tiny)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(f"{NAME}.scale"), f"`{NAME}.scale` is missing in the weights of"),
        (
            lambda w: w.update({NAME: w[NAME].to(torch.int8)}),
            f"`{NAME}` in .* must be torch.uint8, as config.json says, but is torch.int8",
        ),
        (
            lambda w: w.update({NAME: w[NAME][:, 1:].clone()}),
            rf"`{NAME}` in .* must be \[24, 32\], but is \[24, 31\]",
        ),
        (
            lambda w: w.update({f"{NAME}.scale": w[f"{NAME}.scale"].float()}),
            f"`{NAME}.scale` in .* must be torch.bfloat16, but is torch.float32",
        ),
        (
            lambda w: w.update({f"{NAME}.scale": w[f"{NAME}.scale"][:, :1].clone()}),
            rf"`{NAME}.scale` in .* must be \[24, 2\], but is \[24, 1\]",
        ),
        (
            lambda w: w[f"{NAME}.scale"][3, 1].fill_(float("inf")),
            f"`{NAME}.scale` in .* must be finite, but has other",
        ),
    ],
)
def test_bad_files_of_int4(change, message, tmp_path):
    save_tiny_model(tmp_path / "tiny", "marian-separate")
    pybeam.quantize(tmp_path / "tiny", tmp_path / "quantised", dtype="int4")
    edit(tmp_path / "quantised", change)
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path / "quantised")


def test_other_quantisations_keep_their_messages(tmp_path, tiny):
    path = tiny / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"torch.int8; quantised weights are not supported"):
        load_model(tiny)
    config["quantization_config"] = {"quant_method": "pybeam", "dtype": "int2"}
    path.write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r"`quantization_config` in .* but is .*int2.*newer version"
    ):
        load_model(tiny)


def test_memory_is_at_most_055_of_float16s(quantised_example):
    half = load_model(MODEL, dtype="float16")
    if not isinstance(half.output, PackedLinear):
        pytest.skip("there is no C++ extension for this CPU")
    assert bytes_of(load_model(quantised_example)) <= 0.55 * bytes_of(half)


def test_memory_of_a_wider_model(tmp_path):
    directory = tmp_path / "wide"
    sizes = dict(d_model=256, encoder_ffn_dim=512, decoder_ffn_dim=512, vocab_size=2000)
    save_tiny_model(directory, "m2m_100", **sizes)
    pybeam.quantize(directory, tmp_path / "quantised")
    half = load_model(directory, dtype="float16")
    if not isinstance(half.output, PackedLinear):
        pytest.skip("there is no C++ extension for this CPU")
    assert bytes_of(load_model(tmp_path / "quantised")) <= 0.55 * bytes_of(half)


def test_the_command(tmp_path, capsys):
    output = tmp_path / "bible"
    assert main(["quantize", str(MODEL), "--output", str(output)]) == 0
    text = capsys.readouterr().out
    assert text == f"{MODEL}: 15.2 MB of weights; {output}: 7.7 MB\n"
    assert main(["quantize", str(MODEL), "--output", str(output)]) == 1
    assert "--output must be a folder that does not exist or is empty" in capsys.readouterr().err
    assert main(["quantize", str(output), "--output", str(tmp_path / "again")]) == 1
    assert "is quantised already" in capsys.readouterr().err
    source = tmp_path / "in"
    source.write_text("\n".join(LINES[:3]))
    given = [["--model", str(output)], ["--model", str(MODEL), "--dtype", "int8"]]
    translations = []
    for i, options in enumerate(given):
        target = tmp_path / f"out-{i}"
        files = ["--input", str(source), "--output", str(target), "--quiet"]
        assert main(["translate", *options, *files]) == 0
        translations.append(target.read_text())
    assert translations[0] == translations[1] and translations[0].count("\n") == 3
