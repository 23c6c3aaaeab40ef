"""The tensors of FireRedASR-AED by their published names, their shapes, and their names in our files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# sizes that the checkpoint names
SIZES = (
    *("idim", "odim", "d_model", "n_head", "n_layers_enc", "n_layers_dec"),
    *("kernel_size", "pe_maxlen"),
)
CHANNELS = 32  # of the two convolutions over time and frequency


class Stored(NamedTuple):
    """A tensor of the checkpoint, and what becomes of it."""

    name: str
    shape: tuple[int, ...]
    kept: tuple[int, ...]  # the shape in our file
    factor: float = 1.0


Tensors = dict[str, Stored]


def layout(sizes: Mapping[str, int]) -> Tensors:
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
    return tensors


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
