"""Damage that `make fuzz TARGETS=files` has found: a ValueError names the file, before memory is taken."""

from __future__ import annotations

import json
import shutil
import zipfile

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import pybeam
from fuzz.corpus import manifest, save_manifest, valid
from fuzz.files import USES, convert, decode, read_texts, transcribe
from pybeam.corpus.manifest import Manifest
from pybeam.corpus.parts import CorpusError
from pybeam.corpus.readers import Corpus

PREPROCESSOR, GENERATION = "preprocessor_config.json", "generation_config.json"


@pytest.mark.parametrize(
    ("kind", "name", "changes", "message"),
    [
        ("spoken", PREPROCESSOR, {"num_mel_bins": 2}, "`num_mel_bins` and `sampling_rate` must be"),
        ("spoken", PREPROCESSOR, {"sampling_rate": 1}, "`num_mel_bins` and `sampling_rate` must be"),
        ("spoken", PREPROCESSOR, {"sampling_rate": 2**30}, "`sampling_rate` in .* at most 1048576"),
        ("Whisper", PREPROCESSOR, {"chunk_length": 4096}, "`chunk_length` in .* make tables of at"),
        ("Whisper", PREPROCESSOR, {"n_fft": 2**16}, "`n_fft` and `hop_length` in .* must be samples"),
        ("Whisper", GENERATION, {"no_timestamps_token_id": 2}, "id` in .* must be greater than EOS"),
        ("Whisper", GENERATION, {"suppress_tokens": 5}, "`suppress_tokens` in .* must be token"),
        ("Whisper", GENERATION, {"lang_to_id": {"<|en|>": 9**9}}, "`lang_to_id` in .* tokens below"),
        ("Whisper", GENERATION, {"alignment_heads": [[9, 0]]}, "`heads` must be pairs of a layer"),
        ("Whisper", "config.json", {"median_filter_width": "x"}, "width` in .* must be a positive"),
        ("pairs", "vocab.json", {"▁rey": None}, "'▁rey' in .*vocab.json must have a token id"),
        ("languages", "vocab.json", {"a": "b"}, "'a' in .*vocab.json must have a token id"),
        ("languages", "added_tokens.json", {"<mask>": 0.5}, "in .*tokens.json must have a token id"),
        ("Speech2Text", "config.json", {"conv_kernel_sizes": [-1, 3, 7]}, "`conv_kernel_sizes` in"),
        ("Speech2Text", "config.json", {"input_feat_per_channel": 2**28}, "channel` in .* at most 4096"),
        ("FireRedASR", "config.json", {"right_padding": 10**9}, "`right_padding` in .* 0 to 1024"),
        ("flan-t5", "config.json", {"layer_norm_epsilon": {}}, "`layer_norm_epsilon` in .* positive"),
        ("flan-t5", "config.json", {"relative_attention_max_distance": 2**30}, "integer up to 65536"),
        ("causal-llama", "config.json", {"rms_norm_eps": 10**400}, "`rms_norm_eps` in .* a positive"),
        ("causal-llama", "config.json", {"head_dim": 2**30}, "`head_dim` in .* integer up to 65536"),
    ],
)  # fmt: skip
def test_an_odd_value_is_named(kind, name, changes, message, tmp_path):
    directory = shutil.copytree(valid(kind), tmp_path / "model")
    path = directory / name
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        for use in USES.get(kind, (decode,)):
            use(directory)
    assert str(directory) in str(caught.value)


def test_an_item_number_does_not_say_how_much_memory_is_taken(tmp_path):
    directory = shutil.copytree(valid("catalogue"), tmp_path / "model")
    path = directory / "items.safetensors"
    arrays = {name: array.copy() for name, array in load_file(path).items()}
    arrays["items"][3] = np.iinfo(np.int32).max
    save_file(arrays, path, metadata={"format": "pybeam.catalogue", "version": "1"})
    with pytest.raises(ValueError, match=r"items.safetensors .* `items` are not 0 to n - 1"):
        pybeam.Catalogue.load(path)


@pytest.mark.parametrize(
    "change",
    [
        *({"options": [1]}, {"model": 5}, {"part_lines": "x"}, {"num_lines": []}),
        *({"shard": 3}, {"shard": []}, {"shard": [float("inf"), 1]}),
    ],
)
def test_a_manifest_with_a_field_of_another_type_is_named(change, tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(manifest().to_bytes()) | change))
    with pytest.raises(CorpusError, match=r"manifest.json is no manifest of pybeam"):
        Manifest.read(path)


def test_a_manifest_of_lists_within_lists_is_named(tmp_path):
    save_manifest(tmp_path)
    path = tmp_path / "manifest.json"
    assert Manifest.read(path) == manifest()
    path.write_text("[" * 10**5)
    with pytest.raises(CorpusError, match=r"manifest.json is no manifest of pybeam"):
        Manifest.read(path)


def test_a_pickle_that_takes_from_an_empty_stack_is_named(tmp_path):
    directory = shutil.copytree(valid("published"), tmp_path / "model")
    path = directory / "model.pth.tar"
    with zipfile.ZipFile(valid("published") / path.name) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            is_pickle = name.endswith("data.pkl")
            new.writestr(name, b"\x80\x02u." if is_pickle else old.read(name))
    with pytest.raises(ValueError, match=r"model.pth.tar is not a sound checkpoint of torch"):
        convert(directory)


def test_a_table_of_items_that_is_cut_is_named(tmp_path):
    path = tmp_path / "in.parquet"
    path.write_bytes((valid("items") / path.name).read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"in.parquet is no sound Parquet file"):
        pybeam.Catalogue.from_parquet(path, "ids")


def test_a_column_whose_name_is_no_text_is_named(tmp_path):
    path = tmp_path / "in.parquet"
    path.write_bytes((valid("items") / path.name).read_bytes().replace(b"ids", b"\xf2ds"))
    with pytest.raises(ValueError, match=r"in.parquet is no sound Parquet file"):
        pybeam.Catalogue.from_parquet(path, "ids")
    with pytest.raises(CorpusError, match=r"in.parquet is no sound Parquet file"):
        Corpus([str(path)], column="ids")


def test_a_table_of_items_that_are_no_ids_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "in.parquet"
    parquet.write_table(pa.table({"ids": [[1, -5]]}), path)
    with pytest.raises(ValueError, match=r"token ids from 0 .*column 'ids' of .*in.parquet"):
        pybeam.Catalogue.from_parquet(path, "ids")


def test_an_eos_that_stands_before_text_does_not_keep_words_from_their_times(tmp_path):
    directory = shutil.copytree(valid("Whisper"), tmp_path / "model")
    path = directory / GENERATION
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"eos_token_id": 3}))
    transcribe(directory)


def test_a_tokenizer_without_its_unknown_token_is_named(tmp_path):
    directory = shutil.copytree(valid("spoken"), tmp_path / "model")
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    content["model"]["unk_token"] = "none"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"tokenizer.json cannot split"):
        read_texts(directory)


def test_a_graph_that_cannot_be_computed_is_named():
    pytest.importorskip("onnxruntime")
    model = pybeam.load_model(valid("rnn-onnx"))
    with pytest.raises(ValueError, match=r"encoder.onnx cannot be computed; is it damaged"):
        model.encoder(
            (torch.zeros(1, 2, 3, dtype=torch.long), torch.ones(1, dtype=torch.long)), "states"
        )


def test_a_rate_of_zero_is_named(tmp_path):
    content = bytearray((valid("wav") / "in.wav").read_bytes())
    content[24:28] = bytes(4)
    path = tmp_path / "in.wav"
    path.write_bytes(content)
    assert pybeam.speech.sound_seconds(path) == 0.0
    with pytest.raises(ValueError, match=r"in.wav must have 16000 Hz, but has 0"):
        pybeam.speech.read_wav(path, 16000)


@pytest.mark.parametrize("ending", ["flac", "ogg"])
def test_a_sound_that_has_but_a_beginning_has_no_length(ending, tmp_path):
    pytest.importorskip("av")
    path = tmp_path / f"in.{ending}"
    path.write_bytes((valid(ending) / path.name).read_bytes()[:3])
    assert pybeam.speech.sound_seconds(path) == 0.0
    with pytest.raises(ValueError, match=path.name):
        pybeam.speech.read_sound(path, 16000)
