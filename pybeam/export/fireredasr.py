"""`convert_fireredasr`: the published folder of FireRedASR-AED becomes one that `load_model` takes."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pybeam.export.fireredasr_names import CHANNELS, SIZES, Stored, layout
from pybeam.export.folders import check_output, complete_folder
from pybeam.export.kaldi import normalisation
from pybeam.models.tensor_files import NAMES, TensorWriter
from pybeam.text.characters import read_dictionary

CHECKPOINT, STATISTICS, DICTIONARY = "model.pth.tar", "cmvn.ark", "dict.txt"
PIECES = "train_bpe1000.model"
IDS = ("sos_id", "eos_id", "pad_id")
# the encoder's sinusoids, which no argument changes
MAX_SOURCE_POSITIONS = 5000
# so many frames of zeros let every fourth frame become a position
RIGHT_PADDING = 6
SAMPLING_RATE = 16000
# not part of the search: tables from a formula, the second name of a tied table, the layer of FireRedASR2
# that finds points in time
LEFT_OUT = (
    "encoder.positional_encoding.pe",
    "decoder.positional_encoding.pe",
    "decoder.tgt_word_prj.weight",
    "ctc.ctc_lo.weight",
    "ctc.ctc_lo.bias",
)
TABLE, OUTPUT_TABLE = "decoder.tgt_word_emb.weight", "decoder.tgt_word_prj.weight"


def convert_fireredasr(directory: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Write FireRedASR-AED as a model directory, for `pybeam.load_model`, `load_tokenizer` and `transcribe`.

    It reads the files that are published: ``model.pth.tar``, ``cmvn.ark``, ``dict.txt`` and
    ``train_bpe1000.model``. It writes ``config.json``, ``model.safetensors`` in the dtypes of the checkpoint,
    ``preprocessor_config.json`` with the normalisation of features, and copies of the last two. The halves
    of the encoder's feed-forwards are multiplied into their second matrices.

    The checkpoint is a pickle, which could run code. So torch's restricted reader opens it
    (``weights_only=True``), and beside tensors it makes nothing but an `argparse.Namespace`, in which the
    sizes are. Any other file is refused. FireRedASR2-AED has the same layout; its layer for points in time
    is left out.

    Args:
        directory: the folder with the published files.
        output: a directory that does not exist, or is empty. It appears when it is complete.

    Raises:
        ValueError: a file is missing, holds something else, or does not fit the others, or `output` is not
            empty.
    """
    source, target = Path(directory), Path(output)
    check_output(target)
    _check_files(source)
    sizes, weights = _read_checkpoint(source / CHECKPOINT)
    tensors = layout(sizes)
    _check_tensors(source / CHECKPOINT, weights, tensors)
    _check_dictionary(source / DICTIONARY, sizes)
    mean, inverse_deviation = normalisation(source / STATISTICS, sizes["idim"])
    features = {
        "feature_extractor_type": "FireRedFeatureExtractor",
        "num_mel_bins": sizes["idim"],
        "sampling_rate": SAMPLING_RATE,
        "mean": mean,
        "inverse_deviation": inverse_deviation,
    }
    with complete_folder(target) as unfinished:
        for name in (DICTIONARY, PIECES):
            shutil.copyfile(source / name, unfinished / name)
        _write_json(unfinished / "config.json", _config(sizes))
        _write_json(unfinished / "preprocessor_config.json", features)
        _write_weights(unfinished / "model.safetensors", weights, tensors)


def _check_files(source: Path) -> None:
    needed = (CHECKPOINT, STATISTICS, DICTIONARY, PIECES)
    missing = [name for name in needed if not (source / name).is_file()]
    if not missing:
        return
    if (source / "asr_encoder.pth.tar").exists():
        raise ValueError(
            f"{source} holds FireRedASR-LLM, whose decoder is a language model with an adapter, and that is "
            "not supported; take FireRedASR-AED"
        )
    raise ValueError(
        f"{source} must hold {', '.join(needed)}, as FireRedASR-AED is published, but {missing[0]} is "
        "missing; is the download complete?"
    )


def _read_checkpoint(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Return the sizes by the checkpoint's names, and the tensors."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            package = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        reason = f" (it names {named[1]})" if named else ""
        raise ValueError(
            f"{path} must hold tensors and an argparse.Namespace alone{reason}; anything else in a "
            "pickle can run code, so it was not opened"
        ) from None
    # whatever the restricted reader meets in a pickle that is damaged, such as an empty stack
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(f"{path} is not a sound checkpoint of torch: {kind}: {error}") from error
    held = package if isinstance(package, dict) else {}
    arguments, weights = held.get("args"), held.get("model_state_dict")
    if not isinstance(arguments, argparse.Namespace) or not isinstance(weights, Mapping):
        raise ValueError(
            f"{path} must have `args`, an argparse.Namespace, and `model_state_dict`, but has "
            f"{sorted(map(str, held)) or type(package).__name__}"
        )
    tensors = {str(name): one for name, one in weights.items() if isinstance(one, Tensor)}
    return _sizes(path, vars(arguments)), tensors


def _sizes(path: Path, arguments: Mapping[str, Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name in (*SIZES, *IDS):
        value, least = arguments.get(name), 0 if name in IDS else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(
                f"`args.{name}` in {path} must be a positive integer, but is {value!r}"
            )
        sizes[name] = value
    for name in IDS:
        if sizes[name] >= sizes["odim"]:
            raise ValueError(
                f"`args.{name}` in {path} must be below odim = {sizes['odim']}, but is {sizes[name]}"
            )
    if sizes["d_model"] % sizes["n_head"]:
        raise ValueError(
            f"`args.d_model` in {path} must be a multiple of n_head = {sizes['n_head']}, but is "
            f"{sizes['d_model']}"
        )
    return sizes


def _check_tensors(
    path: Path, weights: Mapping[str, Tensor], expected: Mapping[str, Stored]
) -> None:
    """Raise ValueError unless these are the tensors of the network, with its shapes."""
    for name, stored in expected.items():
        found = weights.get(name)
        if found is None:
            raise ValueError(f"`{name}` is missing in {path}; do its `args` belong to its weights?")
        if found.shape != stored.shape or found.dtype not in NAMES or found.dtype == torch.int8:
            raise ValueError(
                f"`{name}` in {path} must be floats {list(stored.shape)}, but is {found.dtype} "
                f"{list(found.shape)}; do its `args` belong to its weights?"
            )
    left = sorted(weights.keys() - expected.keys() - {*LEFT_OUT})
    if left:
        raise ValueError(
            f"`{left[0]}` in {path} is not part of FireRedASR-AED ({len(left)} such tensors)"
        )
    output = weights.get(OUTPUT_TABLE)
    if output is not None and not torch.equal(output, weights[TABLE]):
        raise ValueError(f"`{OUTPUT_TABLE}` in {path} must equal `{TABLE}`, but does not")


def _check_dictionary(path: Path, sizes: Mapping[str, int]) -> None:
    tokens = read_dictionary(path)
    if len(tokens) != sizes["odim"]:
        raise ValueError(
            f"{path} must have a token for each of odim = {sizes['odim']} outputs, but has {len(tokens)}"
        )


def _config(sizes: Mapping[str, int]) -> dict[str, Any]:
    d, heads = sizes["d_model"], sizes["n_head"]
    return {
        "model_type": "fireredasr",
        "activation_function": "gelu",
        "conv_channels": CHANNELS,
        "conv_depthwise_kernel_size": sizes["kernel_size"],
        "d_model": d,
        "decoder_attention_heads": heads,
        "decoder_ffn_dim": 4 * d,
        "decoder_layers": sizes["n_layers_dec"],
        "decoder_start_token_id": sizes["sos_id"],
        "encoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * d,
        "encoder_layers": sizes["n_layers_enc"],
        "eos_token_id": sizes["eos_id"],
        "max_source_positions": MAX_SOURCE_POSITIONS,
        "max_target_positions": sizes["pe_maxlen"],
        "num_mel_bins": sizes["idim"],
        "pad_token_id": sizes["pad_id"],
        "right_padding": RIGHT_PADDING,
        "scale_embedding": True,
        "vocab_size": sizes["odim"],
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_weights(
    path: Path, weights: Mapping[str, Tensor], tensors: Mapping[str, Stored]
) -> None:
    shapes = {stored.name: (weights[name].dtype, stored.kept) for name, stored in tensors.items()}
    writer = TensorWriter(path, shapes)
    try:
        for name, stored in tensors.items():
            writer.write(stored.name, (weights[name] * stored.factor).reshape(stored.kept))
    finally:
        writer.close()
