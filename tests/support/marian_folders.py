"""Folders as Marian writes them, with random weights, and CTranslate2's reading of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, INNER, HEADS = 16, 24, 2
SOURCE_VOCAB, VOCAB = 23, 19
EOS, UNK = 0, 1
SETTINGS = {
    "type": "transformer",
    "dim-emb": HIDDEN,
    "dim-vocabs": [SOURCE_VOCAB, VOCAB],
    "enc-depth": 2,
    "dec-depth": 2,
    "tied-embeddings": "true",
    "tied-embeddings-all": "false",
    "transformer-heads": HEADS,
    "transformer-dim-ffn": INNER,
    "transformer-ffn-activation": "relu",
    "transformer-ffn-depth": 2,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": "false",
    "transformer-guided-alignment-layer": "last",
    "transformer-preprocess": '""',
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": '""',
    "transformer-tied-layers": [],
    "version": "v1.12.0",
}
PRE_NORM = {
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-emb": "nd",
    "transformer-postprocess-top": "n",
    "transformer-ffn-activation": "swish",
}
JOINT = {"dim-vocabs": [VOCAB, VOCAB], "tied-embeddings-all": "true"}
SSRU = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}

Arrays = dict[str, np.ndarray]


def random_arrays(seed: int, settings: dict[str, Any]) -> Arrays:
    """Make the arrays of a model with these settings, under Marian's names."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    source_size, vocab_size = settings["dim-vocabs"]
    pre = "_pre" if settings["transformer-preprocess"] == "n" else ""
    hidden, inner = settings["dim-emb"], settings["transformer-dim-ffn"]
    is_recurrent = settings["transformer-decoder-autoreg"] == "rnn"

    def matrix(name: str, *shape: int) -> None:
        arrays[name] = rng.normal(size=shape).astype(np.float32) / shape[-1] ** 0.5

    def linear(name: str, end: str, rows: int, columns: int) -> None:
        matrix(f"{name}_W{end}", rows, columns)
        matrix(f"{name}_b{end}", 1, columns)

    def norm(name: str, end: str = "") -> None:
        arrays[f"{name}_ln_scale{end}"] = rng.uniform(0.5, 1.5, (1, hidden)).astype(np.float32)
        matrix(f"{name}_ln_bias{end}", 1, hidden)

    def attention(name: str) -> None:
        for letter in "qkvo":
            linear(name, letter, hidden, hidden)
        norm(f"{name}_Wo", pre)

    if settings["tied-embeddings-all"] == "true":
        matrix("Wemb", vocab_size, hidden)
    else:
        matrix("encoder_Wemb", source_size, hidden)
        matrix("decoder_Wemb", vocab_size, hidden)
    for stack in ("encoder", "decoder"):
        if "n" in settings["transformer-postprocess-emb"]:
            norm(f"{stack}_emb", "_pre")
        for i in range(settings[f"{stack[:3]}-depth"]):
            layer = f"{stack}_l{i + 1}"
            if stack == "decoder" and is_recurrent:
                matrix(f"{layer}_rnn_W", hidden, hidden)
                linear(f"{layer}_rnn", "f", hidden, hidden)
                norm(f"{layer}_rnn" if pre else f"{layer}_rnn_ffn", pre)
            else:
                attention(f"{layer}_self")
            if stack == "decoder":
                attention(f"{layer}_context")
            linear(f"{layer}_ffn", "1", hidden, inner)
            linear(f"{layer}_ffn", "2", inner, hidden)
            norm(f"{layer}_ffn_ffn", pre)
        if pre:
            norm(f"{stack}_top")
    matrix("decoder_ff_logit_out_b", 1, vocab_size)
    # hypotheses end at many lengths
    arrays["decoder_ff_logit_out_b"][0, EOS] += 2.0
    return arrays


def write_arrays(path: Path, arrays: Arrays, settings: dict[str, Any]) -> None:
    """Write model.npz, with its settings."""
    text = "".join(f"{name}: {value}\n" for name, value in settings.items()) + "\0"
    special = np.frombuffer(text.encode(), np.int8)
    np.savez(path, **arrays, **{"special:model.yml": special})


def tokens_of(size: int) -> list[str]:
    """Return the tokens of a vocabulary, some of which YAML would take for something else."""
    odd = ["</s>", "<unk>", "no", "1", "null", ":", "#", '"', "'", "a: b", "\\", "▁é", "~", "1e5"]
    return [*odd, *(f"t{i}" for i in range(len(odd), size))]


def write_vocabulary(path: Path, tokens: Sequence[str]) -> None:
    """Write a vocabulary as Marian does: texts in quotes where YAML wants them."""
    lines = []
    for i, token in enumerate(tokens):
        quoted = token.replace("\\", "\\\\").replace('"', '\\"')
        plain = token.strip("▁</>").isalnum() and token != "null"
        lines.append(f"{token if plain else f'{chr(34)}{quoted}{chr(34)}'}: {i}\n")
    path.write_text("".join(lines), "utf-8")


def write_folder(directory: Path, seed: int, **changes: Any) -> tuple[Arrays, dict[str, Any]]:
    """Write a folder with random weights; return these and the settings."""
    settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in changes.items()}}
    arrays = random_arrays(seed, settings)
    write_files(directory, arrays, settings, [tokens_of(size) for size in settings["dim-vocabs"]])
    return arrays, settings


def write_files(
    directory: Path,
    arrays: Arrays,
    settings: dict[str, Any],
    vocabularies: Sequence[Sequence[str]],
) -> None:
    """Write a folder as Marian's training does, with the tokens of sources and of targets."""
    directory.mkdir(parents=True, exist_ok=True)
    write_arrays(directory / "model.npz", arrays, settings)
    for name, tokens in zip(("source.yml", "target.yml"), vocabularies, strict=True):
        write_vocabulary(directory / name, tokens)
    (directory / "decoder.yml").write_text(
        "# as Marian's training writes it\nrelative-paths: true\nmodels:\n  - model.npz\nvocabs:\n"
        "  - source.yml\n  - target.yml\nbeam-size: 6\nnormalize: 1\nallow-unk: true\n"
    )


def convert(
    directory: Path, output: Path, arrays: Arrays, settings: dict[str, Any]
) -> list[list[str]]:
    """Convert a folder with CTranslate2's converter, and return its vocabularies.

    The converter takes positions for those of another formula, and is given those of Marian.
    """
    from ctranslate2.converters.marian import MarianConverter, load_vocab

    copy = output.parent / "for-ctranslate2"
    shutil.copytree(directory, copy)
    write_arrays(copy / "model.npz", arrays | {"Wpos": positions(64)}, settings)
    vocabularies = [copy / name for name in ("source.yml", "target.yml")]
    MarianConverter(str(copy / "model.npz"), [str(path) for path in vocabularies]).convert(
        str(output)
    )
    return [load_vocab(path) for path in vocabularies]


def positions(num: int) -> np.ndarray:
    """Return Marian's table of positions: the sines of all frequencies, and then the cosines."""
    half = HIDDEN // 2
    frequency = 10000.0 ** (-np.arange(half) / (half - 1))
    angle = np.arange(num)[:, None] * frequency
    return np.concatenate((np.sin(angle), np.cos(angle)), 1).astype(np.float32)
