"""Vocabularies of folders of CTranslate2, and the texts of models that have them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import pybeam
from pybeam.text.ctranslate2 import read_words
from support.ctranslate2_folders import convert_whisper
from support.paths import MODEL
from support.tiny_whisper import OPTIONS, save_whisper, sounds, transcribed

LINES = ["Jesús lloró.", "Y dijo Dios: Sea la luz: y fué la luz.", ""]


def test_vocabularies_are_lists_or_lines(tmp_path):
    (tmp_path / "source_vocabulary.txt").write_bytes(b"<s>\n</s>\na\n")
    (tmp_path / "target_vocabulary.txt").write_bytes(b"<s>\r\n</s>\r\n\xc3\xa9\r\n")
    words = read_words(tmp_path)
    assert (words.source, words.target) == (["<s>", "</s>", "a"], ["<s>", "</s>", "é"])
    # the unknown word stands behind those of the file
    assert words.source_ids == {"<s>": 0, "</s>": 1, "a": 2, "<unk>": 3}
    assert words.special_id("decoder_start_token") == words.special_id("bos_token") == 0
    (tmp_path / "shared_vocabulary.json").write_text(json.dumps(["<unk>", "b", "b"]))
    words = read_words(tmp_path)
    assert words.source is words.target and words.target_ids == {"<unk>": 0, "b": 1}
    (tmp_path / "vocabulary.json").write_text(json.dumps(["x"]))
    assert not read_words(tmp_path).has_encoder


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("other.json", "[]", "neither vocabulary, shared_vocabulary"),
        ("vocabulary.json", '{"a": 1}', "must be a list of tokens|there must be a list"),
        ("vocabulary.json", "[1]", "there must be a list of tokens"),
        ("shared_vocabulary.json", "[", "must be a vocabulary, but cannot be read"),
        ("config.json", '{"eos_token": 5}', "`eos_token` .* must be a token or null"),
    ],
)
def test_an_odd_vocabulary_is_named(name, content, problem, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=problem) as caught:
        read_words(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    """The example model, as CTranslate2 has it."""
    pytest.importorskip("ctranslate2")
    sentencepiece = pytest.importorskip("sentencepiece")
    from benchmarks.peers import ctranslate2_directory, transformers_model

    pieces = sentencepiece.SentencePieceProcessor(str(MODEL / "sentencepiece.model"))
    folder = tmp_path_factory.mktemp("example")
    tokens = [pieces.id_to_piece(i) for i in range(len(pieces))]
    ctranslate2_directory(transformers_model(MODEL), tokens, folder)
    shutil.copyfile(MODEL / "sentencepiece.model", folder / "sentencepiece.model")
    return folder


def test_texts_are_those_of_the_original(example):
    own, original = (pybeam.load_tokenizer(folder) for folder in (example, MODEL))
    assert own.encode(LINES) == original.encode(LINES)
    ids = original.encode_target("And God said,")
    assert own.encode_target("And God said,") == ids
    assert own.decode(ids) == original.decode(ids)
    found = [pybeam.load(folder, device="cpu") for folder in (example, MODEL)]
    search = pybeam.fixed_beam(3)
    lines = [pybeam.Decoder(one.model, search).decode(original.encode(LINES)) for one in found]
    assert [[h.tokens for h in r.hypotheses] for r in lines[0]] == [
        [h.tokens for h in r.hypotheses] for r in lines[1]
    ]
    assert found[0].translate(LINES[0]) == found[1].translate(LINES[0])


def test_a_folder_without_a_tokenizer_says_what_to_copy(example, tmp_path):
    for path in example.iterdir():
        if path.name != "sentencepiece.model":
            shutil.copyfile(path, tmp_path / path.name)
    with pytest.raises(FileNotFoundError, match=r"no tokenizer in .*--copy_files"):
        pybeam.load_tokenizer(tmp_path)


def test_settings_of_marian_beside_the_weights_are_not_read(example, tmp_path):
    """A folder may have been converted in place, and old converters wrote no config.json."""
    for path in example.iterdir():
        if path.name != "config.json":
            shutil.copyfile(path, tmp_path / path.name)
    (tmp_path / "decoder.yml").write_text("beam-size: 9\n")
    assert pybeam.load(tmp_path, device="cpu").decoder.algorithm.width == 5


@pytest.mark.slow
def test_a_whisper_transcribes_as_the_original(tmp_path):
    pytest.importorskip("ctranslate2")
    (tmp_path / "original").mkdir()
    save_whisper(tmp_path / "original")
    convert_whisper(tmp_path / "original", tmp_path / "ct2")
    found = []
    for name in ("original", "ct2"):
        model = pybeam.load_model(tmp_path / name, device="cpu")
        found.append(transcribed(model, tmp_path / name, sounds(250, 64)))
    assert found[0] == found[1] and found[0][0].segments
    # the heads of words are those of config.json
    options = replace(OPTIONS, words=True)
    [transcript] = transcribed(model, tmp_path / "ct2", sounds(250), options)
    assert any(segment.words for segment in transcript.segments)
