"""`convert_fireredasr`: the published folder of FireRedASR-AED becomes one that `load_model` takes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pybeam.export.folders import check_output, complete_folder
from pybeam.export.kaldi import normalisation
from pybeam.export.pickled import read_pickle
from pybeam.models.checkpoint import FLOATS
from pybeam.models.tensor_files import TensorWriter
from pybeam.text.characters import read_dictionary

CHECKPOINT, STATISTICS, DICTIONARY = "model.pth.tar", "cmvn.ark", "dict.txt"
PIECES = "train_bpe1000.model"
# sizes that the checkpoint names
SIZES = (
    *("idim", "odim", "d_model", "n_head", "n_layers_enc", "n_layers_dec"),
    *("kernel_size", "pe_maxlen"),
)
CHANNELS = 32  # of the two convolutions over time and frequency
IDS = ("sos_id", "eos_id", "pad_id")
# the encoder's sinusoids, which no argument changes
MAX_SOURCE_POSITIONS = 5000
# so many frames of zeros let every fourth frame become a position
RIGHT_PADDING = 6
SAMPLING_RATE = 16000
# not part of the search: tables from a formula, the second name of a tied table
LEFT_OUT = (
    "encoder.positional_encoding.pe",
    "decoder.positional_encoding.pe",
    "decoder.tgt_word_prj.weight",
)
# the layer of FireRedASR2 that says in each frame of sound which token it is
CTC = "ctc.ctc_lo"
TABLE, OUTPUT_TABLE = "decoder.tgt_word_emb.weight", "decoder.tgt_word_prj.weight"


class Stored(NamedTuple):
    """A tensor of the checkpoint, and what becomes of it."""

    name: str
    shape: tuple[int, ...]
    kept: tuple[int, ...]  # the shape in our file
    factor: float = 1.0


Tensors = dict[str, Stored]


def convert_fireredasr(directory: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Write FireRedASR-AED as a model directory, for `pybeam.load_model`, `load_tokenizer` and `transcribe`.

    It reads the files that are published: ``model.pth.tar``, ``cmvn.ark``, ``dict.txt`` and
    ``train_bpe1000.model``. It writes ``config.json``, ``model.safetensors`` in the dtypes of the checkpoint,
    ``preprocessor_config.json`` with the normalisation of features, and copies of the last two. The halves
    of the encoder's feed-forwards are multiplied into their second matrices.

    The checkpoint is a pickle, which could run code. So torch's restricted reader opens it
    (``weights_only=True``), if beside tensors it names nothing but an `argparse.Namespace`, in which the
    sizes are. Any other file is refused. FireRedASR2-AED has the same layout, and a layer of CTC beside its
    decoder (`pybeam.models.ConformerTransformer.ctc_log_probs`).

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
    has_ctc = f"{CTC}.weight" in weights
    tensors = _layout(sizes, has_ctc)
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
        _write_json(unfinished / "config.json", _config(sizes) | {"has_ctc": has_ctc})
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
    package = read_pickle(path, also=[argparse.Namespace])
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
        if found.shape != stored.shape or found.dtype not in FLOATS:
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


def _layout(sizes: Mapping[str, int], has_ctc: bool) -> Tensors:
    """Return all tensors of a network with these sizes, by their published names."""
    d, vocabulary = sizes["d_model"], sizes["odim"]
    tensors = {
        "decoder.tgt_word_emb.weight": Stored(
            "decoder.embed_tokens.weight", (vocabulary, d), (vocabulary, d)
        ),
        **_norm("decoder.layer_norm_out", "decoder.layer_norm", d),
        **_subsampler(sizes["idim"], d),
    }
    for i in range(sizes["n_layers_enc"]):
        own = _encoder_layer(d, sizes["n_head"], sizes["kernel_size"])
        tensors |= _below(f"encoder.layer_stack.{i}.", f"encoder.layers.{i}.", own)
    for i in range(sizes["n_layers_dec"]):
        tensors |= _below(f"decoder.layer_stack.{i}.", f"decoder.layers.{i}.", _decoder_layer(d))
    return tensors | (_linear(CTC, "encoder.ctc", vocabulary, d) if has_ctc else {})


def _below(theirs: str, ours: str, tensors: Tensors) -> Tensors:
    """Put these prefixes before the names."""
    return {
        theirs + name: stored._replace(name=ours + stored.name) for name, stored in tensors.items()
    }


def _norm(theirs: str, ours: str, size: int) -> Tensors:
    shape = (size,)
    ends = ("weight", "bias")
    return {f"{theirs}.{end}": Stored(f"{ours}.{end}", shape, shape) for end in ends}


def _matrix(theirs: str, ours: str, rows: int, columns: int, *window: int) -> Tensors:
    """A matrix without a bias, or a convolution over one position."""
    kept = rows, columns
    return {f"{theirs}.weight": Stored(f"{ours}.weight", (*kept, *window), kept)}


def _linear(theirs: str, ours: str, rows: int, columns: int, factor: float = 1.0) -> Tensors:
    tensors = {
        **_matrix(theirs, ours, rows, columns),
        f"{theirs}.bias": Stored(f"{ours}.bias", (rows,), (rows,)),
    }
    return {name: stored._replace(factor=factor) for name, stored in tensors.items()}


def _subsampler(num_features: int, d: int) -> Tensors:
    theirs, ours = "encoder.input_preprocessor", "encoder.subsample"
    tensors: Tensors = {}
    for index, name, columns in ((0, "conv1", 1), (2, "conv2", CHANNELS)):
        shape = CHANNELS, columns, 3, 3
        weight = Stored(f"{ours}.{name}.weight", shape, shape)
        tensors[f"{theirs}.conv.{index}.weight"] = weight
        tensors[f"{theirs}.conv.{index}.bias"] = Stored(
            f"{ours}.{name}.bias", (CHANNELS,), (CHANNELS,)
        )
    num_bands = ((num_features - 1) // 2 - 1) // 2
    return tensors | _linear(f"{theirs}.out", f"{ours}.out", d, CHANNELS * num_bands)


def _encoder_layer(d: int, num_heads: int, kernel_size: int) -> Tensors:
    tensors = _norm("layer_norm", "layer_norm", d)
    for ffn in ("ffn1", "ffn2"):
        tensors |= _norm(f"{ffn}.net.0", f"{ffn}.layer_norm", d)
        tensors |= _linear(f"{ffn}.net.1", f"{ffn}.fc1", 4 * d, d)
        # the network adds a half of each feed-forward
        tensors |= _linear(f"{ffn}.net.4", f"{ffn}.fc2", d, 4 * d, 0.5)
    for part in "qkv":
        tensors |= _norm(f"mhsa.layer_norm_{part}", f"self_attn.{part}_norm", d)
        tensors |= _matrix(f"mhsa.w_{part}s", f"self_attn.{part}_proj", d, d)
    tensors |= _matrix("mhsa.fc", "self_attn.out_proj", d, d)
    tensors |= _matrix("mhsa.linear_pos", "self_attn.pos_proj", d, d)
    shape = num_heads, d // num_heads
    for part in "uv":
        name = f"self_attn.pos_bias_{part}"
        tensors[f"mhsa.pos_bias_{part}"] = Stored(name, shape, shape)
    tensors |= _norm("conv.pre_layer_norm", "conv.layer_norm", d)
    tensors |= _matrix("conv.pointwise_conv1", "conv.pointwise1", 4 * d, d, 1)
    tensors["conv.depthwise_conv.weight"] = Stored(
        "conv.depthwise.weight", (2 * d, 1, kernel_size), (2 * d, kernel_size)
    )
    # its name in the published code, where it is a layer norm
    tensors |= _norm("conv.batch_norm", "conv.inner_norm", 2 * d)
    return tensors | _matrix("conv.pointwise_conv2", "conv.pointwise2", d, 2 * d, 1)


def _decoder_layer(d: int) -> Tensors:
    tensors: Tensors = {}
    attentions = (("self_attn", "self_attn"), ("cross_attn", "encoder_attn"))
    for theirs, ours in attentions:
        tensors |= _norm(f"{theirs}_norm", f"{ours}_layer_norm", d)
        tensors |= _linear(f"{theirs}.w_qs", f"{ours}.q_proj", d, d)
        tensors |= _matrix(f"{theirs}.w_ks", f"{ours}.k_proj", d, d)
        tensors |= _linear(f"{theirs}.w_vs", f"{ours}.v_proj", d, d)
        tensors |= _linear(f"{theirs}.fc", f"{ours}.out_proj", d, d)
    tensors |= _norm("mlp_norm", "final_layer_norm", d)
    tensors |= _linear("mlp.w_1", "fc1", 4 * d, d)
    return tensors | _linear("mlp.w_2", "fc2", d, 4 * d)
