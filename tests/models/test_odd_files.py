"""Files from strangers: whatever stands in them, an error names the file, and nothing outside is opened."""

from __future__ import annotations

import json
import os
import shutil
import wave
from collections.abc import Callable
from pathlib import Path

import pytest

import pybeam
from fuzz.corpus import save_languages
from pybeam.speech.features import load_feature_extractor
from pybeam.speech.sound import read_sound
from pybeam.speech.whisper.assets import WhisperTokens, load_transcription
from pybeam.text.model_files import MAX_TEXT_BYTES
from support.built_in_models import saved
from support.ctranslate2_folders import convert, convert_whisper, tiny_generator
from support.item_lists import random_items
from support.mutations import check_mutations
from support.paths import MODEL
from support.tiny_whisper import save_whisper

RATE = 16000


def load_all(directory: Path) -> None:
    """Load whatever a directory with a model may have."""
    pybeam.load_model(directory)
    if any(directory.glob("*token*")) or any(directory.glob("*.model")):
        pybeam.load_tokenizer(directory)


def load_whisper(directory: Path) -> None:
    pybeam.load_model(directory)
    pybeam.load_tokenizer(directory)
    load_feature_extractor(directory)
    load_transcription(directory, "en")
    WhisperTokens.load(directory)


def load_marked(directory: Path) -> None:
    """Load a tokenizer that has language tags."""
    pybeam.load_tokenizer(directory, "es", "en")


def save_wav(directory: Path, *, frames: int = 40) -> None:
    with wave.open(str(directory / "sound.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(bytes(range(2 * frames)))


def save_shards(directory: Path) -> None:
    saved("bart", directory)
    (directory / "model.safetensors").rename(directory / "one.safetensors")
    with open(directory / "one.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    names = [name for name in header if name != "__metadata__"]
    index = {"weight_map": dict.fromkeys(names, "one.safetensors")}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def save_quantised(directory: Path) -> None:
    saved("m2m_100", directory)
    pybeam.quantize(directory, directory / "int8")
    for path in directory.glob("*.*"):
        path.unlink()


def save_conformer(directory: Path) -> None:
    saved("FireRedASR", directory)
    shutil.rmtree(directory / "published")


def save_ctranslate2(directory: Path) -> None:
    pytest.importorskip("ctranslate2")
    convert(tiny_generator("qwen3"), directory, "int8")


def save_ctranslate2_whisper(directory: Path) -> None:
    pytest.importorskip("ctranslate2")
    save_whisper(directory / "original")
    convert_whisper(directory / "original", directory / "ct2")
    shutil.rmtree(directory / "original")


def save_example(directory: Path) -> None:
    shutil.copytree(MODEL, directory, dirs_exist_ok=True)


# name -> how the files are made, and how they are read
KINDS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "transformer": (lambda path: saved("m2m_100-untied", path), load_all),
    "t5": (lambda path: saved("flan-t5", path), load_all),
    "causal": (lambda path: saved("causal-qwen2", path), load_all),
    "lstm": (lambda path: saved("rnn", path), load_all),
    "ctranslate2": (save_ctranslate2, load_all),
    "ctranslate2, whisper": (save_ctranslate2_whisper, lambda path: load_whisper(path / "ct2")),
    "conformer": (save_conformer, lambda path: load_all(path / "model")),
    "shards": (save_shards, load_all),
    "quantised": (save_quantised, lambda path: load_all(path / "int8")),
    "sentencepiece": (save_example, pybeam.load_tokenizer),
    "m2m100": (save_languages, load_marked),
    "whisper": (save_whisper, load_whisper),
    "wav": (save_wav, lambda path: read_sound(path / "sound.wav", RATE)),
    "catalogue": (
        lambda path: pybeam.Catalogue.build(random_items(5, 80, range(2, 7), range(1, 5))).save(
            path / "catalogue.safetensors"
        ),
        lambda path: pybeam.Catalogue.load(path / "catalogue.safetensors"),
    ),
}
SEEDS = 3, 300


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A function that returns sound files of a kind, made once."""
    made: dict[str, Path] = {}

    def of_kind(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind)
            KINDS[kind][0](made[kind])
        return made[kind]

    return of_kind


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_file_is_named(kind, sound, tmp_path):
    check_mutations(sound(kind), tmp_path / "odd", KINDS[kind][1], range(SEEDS[0]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_odd_files_are_named(kind, sound, tmp_path):
    check_mutations(sound(kind), tmp_path / "odd", KINDS[kind][1], range(*SEEDS))


@pytest.fixture
def directory(sound, tmp_path):
    """A copy of the shards of a model."""
    return shutil.copytree(sound("shards"), tmp_path / "model")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../one.safetensors", "..", "a/b", "a\\b", "", "a\0b", 5, None, ["x"]]
)
def test_a_name_in_a_file_stays_in_its_folder(directory, name):
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][min(index["weight_map"])] = name
    path.write_text(json.dumps(index))
    with pytest.raises(
        ValueError, match=r"index.json must name files in its own folder, but names"
    ):
        pybeam.load_model(directory)


def test_links_of_the_folder_are_followed(directory, tmp_path):
    """Caches of the hub consist of them."""
    for path in sorted(directory.iterdir()):
        path.rename(tmp_path / path.name)
        path.symlink_to(f"../{path.name}")
    pybeam.load_model(directory)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "one.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_only_regular_files_are_read(directory, name, kind):
    path = directory / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=rf"{name} must be a regular file, but is a"):
        pybeam.load_model(directory)


def test_a_text_file_has_a_largest_size(directory):
    os.truncate(directory / "config.json", MAX_TEXT_BYTES + 1)
    with pytest.raises(
        ValueError, match=r"config.json must have at most 268,435,456 bytes, but has"
    ):
        pybeam.load_model(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 2**31}, "`vocab_size` in .* must be at most 2147483647"),
        ({"vocab_size": 2**31 - 1}, r"`model.shared.weight` in .* must be \[2147483647, 24\]"),
        ({"d_model": 2**64}, "`d_model` in .* must be at most 2147483647"),
        ({"decoder_layers": 2**31 - 1}, "`decoder_layers` in .* must be at most 10000"),
        ({"pad_token_id": "x"}, "`pad_token_id` in .* must be an integer from 0 to"),
    ],
)
def test_sizes_are_checked_before_memory_is_taken(directory, changes, message):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        pybeam.load_model(directory)


def test_a_table_that_follows_from_a_formula_has_a_largest_size(sound, tmp_path):
    directory = shutil.copytree(sound("transformer"), tmp_path / "model")
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 2**30}))
    with pytest.raises(ValueError, match=r"must give a table of at most 67,108,864 numbers"):
        pybeam.load_model(directory)


@pytest.mark.parametrize("content", ["[" * 10**5, '{"a":' * 10**5])
def test_lists_within_lists_have_an_end(directory, content):
    (directory / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config.json must be a JSON file, but cannot be read"):
        pybeam.load_model(directory)
