"""Small valid files to damage: a directory of every layout that the library reads, made once a process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pybeam
from support.built_in_models import saved
from support.item_lists import random_items
from support.paths import MODEL, ROOT
from support.tiny_rnn import save_tiny_rnn

SPOKEN = ROOT / "examples" / "models" / "spoken-numbers-en"
WAV = ROOT / "examples" / "speech" / "first.wav"
# these need no other package than pybeam itself
PLAIN = ("catalogue", "rnn", "rnn-int8", "spoken", "tokenizer", "wav")
KINDS = (
    *PLAIN,
    *("bart", "causal-gemma3", "causal-llama", "flan-t5", "m2m_100", "marian-separate"),
    *("m2m_100-int8", "m2m_100-onnx", "rnn-onnx", "FireRedASR", "Speech2Text", "Whisper"),
)
WAV_BYTES = 8000


@cache
def folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="pybeam-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def valid(kind: str) -> Path:
    """Return a directory of this kind, with nothing wrong in it."""
    directory = folder() / kind
    stem, _, form = kind.partition("-")
    if kind == "catalogue":
        directory.mkdir()
        items = random_items(3, 40, range(4, 30), range(1, 6), repeats=5)
        pybeam.Catalogue.build(items).save(directory / "items.safetensors")
    elif kind == "spoken":
        shutil.copytree(SPOKEN, directory, ignore=shutil.ignore_patterns("*.md"))
    elif kind == "tokenizer":
        directory.mkdir()
        for path in MODEL.iterdir():
            if path.suffix in (".json", ".model"):
                shutil.copy(path, directory)
    elif kind == "wav":
        directory.mkdir()
        (directory / "in.wav").write_bytes(WAV.read_bytes()[:WAV_BYTES])
    elif kind == "Whisper":
        from support.tiny_whisper import save_whisper

        save_whisper(directory)
    elif form == "int8":
        pybeam.quantize(valid(stem), directory)
    elif form == "onnx":
        pybeam.export.export_onnx(pybeam.load_model(valid(stem)), directory)
    elif kind == "rnn":
        directory.mkdir()
        save_tiny_rnn(directory)
    else:
        [directory] = saved(kind, directory)
    return directory
