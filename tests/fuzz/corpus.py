"""Small valid files to damage: a directory of every layout that the library reads, made once a process."""

from __future__ import annotations

import atexit
import gzip
import json
import shutil
import tempfile
import wave
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import pybeam
from pybeam.corpus.manifest import InputFile, Manifest, PartEntry
from support.built_in_models import saved
from support.item_lists import random_items
from support.ngrams import ARPA, BINARY
from support.paths import MODEL, ROOT
from support.tiny_models import save_tiny_model
from support.tiny_rnn import save_tiny_rnn

SPOKEN = ROOT / "examples" / "models" / "spoken-numbers-en"
RATE = 16000
# sounds by what FFmpeg calls their codecs
CODECS = {
    **{"mp3": "libmp3lame", "ogg": "libopus", "flac": "flac"},
    **{"m4a": "aac", "aac": "aac", "mkv": "aac"},
}
TEXTS = ("txt.gz", "jsonl", "jsonl.zst", "parquet")
LINES = ["Y dijo Dios: Sea la luz", "y fué la luz.", "Jesús lloró."] * 40


@cache
def folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="pybeam-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def valid(kind: str) -> Path:
    """Return a directory of this kind, with nothing wrong in it."""
    directory = folder() / kind
    directory.mkdir()
    stem, _, form = kind.partition("-")
    if form in ("int8", "int4"):
        pybeam.quantize(valid(stem), directory, dtype=form)
    elif form == "onnx":
        pybeam.export.export_onnx(pybeam.load_model(valid(stem)), directory)
    elif kind in MAKERS:
        MAKERS[kind](directory)
    else:
        [directory] = saved(kind, directory)
    return directory


def save_catalogue(directory: Path) -> None:
    items = random_items(3, 40, range(4, 30), range(1, 6), repeats=5)
    pybeam.Catalogue.build(items).save(directory / "items.safetensors")


def save_shortlists(directory: Path) -> None:
    """A lexical table, as text and packed, and a `vmap.txt`, of tokens that are numbers."""
    table = "".join(f"{i % 7} {i % 5} {1 / (1 + i)}\n" for i in range(40)).encode()
    (directory / "lex.s2t").write_bytes(table)
    (directory / "lex.s2t.gz").write_bytes(gzip.compress(table, mtime=0))
    (directory / "vmap.txt").write_text("\t1 2\n3 4\t5 6\n5\t6\n", "utf-8")


def save_ngrams(directory: Path) -> None:
    """A language model as text, packed, and in both of KenLM's forms."""
    (directory / "own.arpa").write_text(ARPA, "utf-8")
    (directory / "own.arpa.gz").write_bytes(gzip.compress(ARPA.encode(), mtime=0))
    for kind, content in BINARY.items():
        (directory / f"own.{kind}").write_bytes(content)


def save_spoken(directory: Path) -> None:
    for path in SPOKEN.iterdir():
        if path.suffix != ".md":
            shutil.copy(path, directory)


def save_processor(directory: Path) -> None:
    """The features' settings where transformers 5 writes them."""
    save_spoken(directory)
    settings = json.loads((directory / "preprocessor_config.json").read_text("utf-8"))
    (directory / "preprocessor_config.json").unlink()
    (directory / "processor_config.json").write_text(json.dumps({"feature_extractor": settings}))


def save_rotary(directory: Path, **parameters: Any) -> None:
    """A decoder alone, whose rotary embeddings are scaled in this way."""
    shutil.copytree(valid("causal-llama"), directory, dirs_exist_ok=True)
    path = directory / "config.json"
    config = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(config | {"rope_parameters": {"rope_theta": 500.0} | parameters}))


def save_pairs(directory: Path) -> None:
    """The tokenizer of a Marian model, with a model for each side."""
    for name in ("source.spm", "target.spm"):
        shutil.copy(MODEL / "sentencepiece.model", directory / name)
    pieces = {"</s>": 0, "<unk>": 1, "▁el": 2, "▁rey": 3, ">>en<<": 4, "<pad>": 5}
    contents = {
        "config.json": {"model_type": "marian", "eos_token_id": 0},
        "vocab.json": pieces,
        "tokenizer_config.json": {"target_lang": "en", "source_lang": "es"},
    }
    for name, content in contents.items():
        (directory / name).write_text(json.dumps(content))


def save_items(directory: Path) -> None:
    """Items of a catalogue as a column of lists."""
    import pyarrow as pa
    from pyarrow import parquet

    items = random_items(3, 40, range(4, 30), range(1, 6))
    parquet.write_table(pa.table({"ids": items}), directory / "in.parquet")


def save_shards(directory: Path) -> None:
    """A model whose weights stand in two files."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(valid("bart"), directory, dirs_exist_ok=True)
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    shard_of = {name: f"{i % 2}.safetensors" for i, name in enumerate(sorted(weights))}
    for shard in set(shard_of.values()):
        own = {name: weights[name] for name in weights if shard_of[name] == shard}
        save_file(own, directory / shard, metadata={"format": "pt"})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shard_of}))


def save_tokenizer(directory: Path) -> None:
    for path in MODEL.iterdir():
        if path.suffix in (".json", ".model"):
            shutil.copy(path, directory)


def save_languages(directory: Path) -> None:
    """The tokenizer of a model that translates between many languages."""
    shutil.copy(MODEL / "sentencepiece.model", directory / "sentencepiece.bpe.model")
    contents = {
        "config.json": {"model_type": "m2m_100", "eos_token_id": 2},
        "vocab.json": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4},
        "special_tokens_map.json": {"additional_special_tokens": ["__es__", {"content": "__en__"}]},
        "added_tokens.json": {"<mask>": 7},
        "tokenizer_config.json": {
            "src_lang": "es",
            "tgt_lang": "en",
            "tokenizer_class": "M2M100Tokenizer",
            "added_tokens_decoder": {"8": {"content": "<x>", "special": True}},
        },
        "generation_config.json": {"forced_bos_token_id": 6, "eos_token_id": 2},
    }
    for name, content in contents.items():
        (directory / name).write_text(json.dumps(content))


def save_whisper(directory: Path) -> None:
    from support import tiny_whisper

    tiny_whisper.save_whisper(directory)


def save_published(directory: Path) -> None:
    """FireRedASR with its pickle, as it is published."""
    from support import fireredasr_files

    fireredasr_files.save_published(directory, seed=14)


def save_pickled(directory: Path, is_zip: bool = True) -> None:
    """A model with a pickle in the place of its weights."""
    save_tiny_model(directory, "marian")
    weights = directory / "model.safetensors"
    held, path = load_file(weights), directory / "pytorch_model.bin"
    torch.save(held, path, _use_new_zipfile_serialization=is_zip)
    weights.unlink()


def save_wav(directory: Path) -> None:
    with wave.open(str(directory / "in.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(bytes(range(256)) * 16)


def save_sound(directory: Path, ending: str) -> None:
    """Half a second in a format that FFmpeg decodes."""
    import av

    with av.open(str(directory / f"in.{ending}"), "w") as file:
        stream = file.add_stream(CODECS[ending], rate=48000, layout="mono")
        samples = np.sin(np.arange(24000, dtype=np.float32) / 20)[None]
        frame = av.AudioFrame.from_ndarray(samples, "flt", "mono")
        frame.sample_rate = 48000
        size = stream.codec_context.frame_size or 1024
        resampler = av.AudioResampler(stream.format, "mono", 48000, frame_size=size)
        for one in (*resampler.resample(frame), *resampler.resample(None)):
            file.mux(stream.encode(one))
        file.mux(stream.encode(None))


def save_lines(directory: Path, ending: str) -> None:
    """Lines as `pybeam corpus` reads them."""
    import pyarrow as pa
    import zstandard
    from pyarrow import parquet

    path = directory / f"in.{ending}"
    text = "\n".join(LINES).encode() + b"\n"
    records = "\n".join(json.dumps({"text": line}) for line in LINES).encode() + b"\n"
    if ending == "parquet":
        parquet.write_table(pa.table({"text": LINES}), path)
    elif ending == "jsonl.zst":
        path.write_bytes(zstandard.ZstdCompressor().compress(records))
    else:
        path.write_bytes(records if ending == "jsonl" else gzip.compress(text, mtime=0))


def save_manifest(directory: Path) -> None:
    """The manifest of a run of `pybeam corpus`."""
    (directory / "manifest.json").write_bytes(manifest().to_bytes())


def manifest() -> Manifest:
    inputs = [InputFile("in.txt", 300, 5)]
    part = PartEntry(2, 0, "0" * 32, "1" * 32)
    return Manifest("1.0", {"config.json": "ab"}, {"width": 4}, 2, (1, 1), inputs, {0: part}, 2)


MAKERS: dict[str, Callable[[Path], object]] = {
    "catalogue": save_catalogue,
    "manifest": save_manifest,
    "n-grams": save_ngrams,
    "rnn": save_tiny_rnn,
    "shortlist": save_shortlists,
    "spoken": save_spoken,
    "tokenizer": save_tokenizer,
    "wav": save_wav,
    **{ending: partial(save_lines, ending=ending) for ending in TEXTS},
    **{ending: partial(save_sound, ending=ending) for ending in CODECS},
    "items": save_items,
    "languages": save_languages,
    "longrope": partial(
        save_rotary,
        rope_type="longrope",
        original_max_position_embeddings=8,
        short_factor=[1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
        long_factor=[2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
    ),
    "pairs": save_pairs,
    "pickled": save_pickled,
    "pickled before torch 1.6": partial(save_pickled, is_zip=False),
    "processor": save_processor,
    "published": save_published,
    "shards": save_shards,
    "Whisper": save_whisper,
    "yarn": partial(save_rotary, rope_type="yarn", factor=2.0, original_max_position_embeddings=32),
}
KINDS = (
    *MAKERS,
    *("bart", "fsmt", "m2m_100", "marian-separate", "flan-t5", "umt5", "FireRedASR", "Speech2Text"),
    *("causal-gemma3", "causal-llama", "causal-qwen2"),
    *("rnn-int8", "rnn-onnx", "m2m_100-int8", "m2m_100-onnx", "Whisper-int8", "Speech2Text-onnx"),
    "m2m_100-int4",
)
