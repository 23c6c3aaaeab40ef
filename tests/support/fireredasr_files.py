"""FireRedASR-AED as it is published, tiny and random: a checkpoint, statistics, a dictionary, pieces."""

from __future__ import annotations

import argparse
import io
import math
import struct
from functools import cache
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from torch import Tensor

from support.plain_fireredasr import PlainFireRed

SPECIAL = ("<blank>", "<unk>", "<pad>", "<sos>", "<eos>")
CHINESE = "一二三四五六七八九十百千万上下左右大小多少人"
ENGLISH = ["ONE TWO", "TWO ONE", "TO WON", "NOON TEN", "ONE ON ONE", "NET WET TOE"]
NUM_FEATURES, CHANNELS = 14, 32
SIZES = dict(
    idim=NUM_FEATURES,
    odim=40,
    d_model=24,
    n_head=2,
    n_layers_enc=2,
    n_layers_dec=2,
    kernel_size=5,
    pe_maxlen=60,
    residual_dropout=0.1,
    dropout_rate=0.1,
    sos_id=3,
    eos_id=4,
    pad_id=2,
)


def save_published(directory: Path, seed: int = 0, eos_nats: float = 0.0, **sizes) -> PlainFireRed:
    """Save a folder as it is published, with random weights, and return the network.

    `eos_nats` raises the logits of EOS.
    """
    directory.mkdir(parents=True, exist_ok=True)
    arguments = argparse.Namespace(**SIZES | sizes)
    weights = random_weights(arguments, seed, eos_nats)
    save_checkpoint(directory, weights, arguments)
    write_statistics(directory / "cmvn.ark", statistics(arguments.idim, seed))
    lines = [f"{token} {i}" for i, token in enumerate(tokens(arguments.odim))]
    (directory / "dict.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (directory / "train_bpe1000.model").write_bytes(pieces())
    return PlainFireRed(weights, arguments)


def save_checkpoint(directory: Path, weights: dict[str, Tensor], arguments: object) -> None:
    package = {"args": arguments, "model_state_dict": weights}
    torch.save(package, directory / "model.pth.tar")


def tokens(num: int) -> list[str]:
    model = sentencepiece.SentencePieceProcessor(model_proto=pieces())
    own = [model.id_to_piece(i) for i in range(3, model.get_piece_size())]
    found = [*SPECIAL, *own, *CHINESE]
    return [*found, *(f"t{i}" for i in range(len(found), num))][:num]


@cache
def pieces() -> bytes:
    """A SentencePiece model of the English lines."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH),
        model_writer=model,
        model_type="bpe",
        vocab_size=14,
        minloglevel=2,
    )
    return model.getvalue()


def statistics(num_features: int, seed: int) -> np.ndarray:
    """Sums of features and their squares over 1,000 frames, [2, F + 1]."""
    frames = np.random.default_rng(seed).normal(10.0, 3.0, (1000, num_features))
    sums, squares = np.append(frames.sum(0), 1000.0), np.append((frames**2).sum(0), 0.0)
    return np.stack((sums, squares))


def write_statistics(path: Path, matrix: np.ndarray) -> None:
    """Write a binary matrix of Kaldi."""
    kind = b"FM " if matrix.dtype == np.float32 else b"DM "
    rows, columns = matrix.shape
    sizes = struct.pack("<bibi", 4, rows, 4, columns)
    path.write_bytes(b"\0B" + kind + sizes + matrix.tobytes())


def random_weights(sizes: argparse.Namespace, seed: int, eos_nats: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes(sizes).items():
        is_scale = "norm" in name or ".net.0." in name
        mean = 1.0 if is_scale and name.endswith("weight") else 0.0
        weights[name] = mean + 0.3 * torch.randn(shape, generator=generator)
    d, table = sizes.d_model, weights["decoder.tgt_word_emb.weight"]
    bias = weights["decoder.layer_norm_out.bias"]
    table[sizes.eos_id] += eos_nats * bias / bias.square().sum()
    # as torch initialises the row of padding, which no gradient changes
    table[sizes.pad_id] = 0.0
    weights["decoder.tgt_word_prj.weight"] = table
    ahead = sinusoids(torch.arange(5000), d)
    behind = sinusoids(-torch.arange(1, 5000), d)
    weights["encoder.positional_encoding.pe"] = torch.cat((ahead.flip(0), behind))[None]
    weights["decoder.positional_encoding.pe"] = sinusoids(torch.arange(sizes.pe_maxlen), d)[None]
    return weights


def sinusoids(position: Tensor, d: int) -> Tensor:
    frequency = torch.exp(torch.arange(0, d, 2).float() * -(math.log(10000.0) / d))
    angle = position.float()[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


def shapes(sizes: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights but tables of positions."""
    d = sizes.d_model
    found: dict[str, tuple[int, ...]] = {"decoder.tgt_word_emb.weight": (sizes.odim, d)}

    def norm(name: str, size: int = d) -> None:
        found[f"{name}.weight"] = found[f"{name}.bias"] = (size,)

    def linear(name: str, *shape: int, has_bias: bool = True) -> None:
        found[f"{name}.weight"] = shape
        if has_bias:
            found[f"{name}.bias"] = shape[:1]

    front = "encoder.input_preprocessor"
    linear(f"{front}.conv.0", CHANNELS, 1, 3, 3)
    linear(f"{front}.conv.2", CHANNELS, CHANNELS, 3, 3)
    linear(f"{front}.out", d, CHANNELS * (((sizes.idim - 1) // 2 - 1) // 2))
    for name in (f"encoder.layer_stack.{i}" for i in range(sizes.n_layers_enc)):
        for ffn in ("ffn1", "ffn2"):
            norm(f"{name}.{ffn}.net.0")
            linear(f"{name}.{ffn}.net.1", 4 * d, d)
            linear(f"{name}.{ffn}.net.4", d, 4 * d)
        for part in "qkv":
            norm(f"{name}.mhsa.layer_norm_{part}")
            linear(f"{name}.mhsa.w_{part}s", d, d, has_bias=False)
        for part in ("fc", "linear_pos"):
            linear(f"{name}.mhsa.{part}", d, d, has_bias=False)
        for part in "uv":
            found[f"{name}.mhsa.pos_bias_{part}"] = (sizes.n_head, d // sizes.n_head)
        norm(f"{name}.conv.pre_layer_norm")
        linear(f"{name}.conv.pointwise_conv1", 4 * d, d, 1, has_bias=False)
        linear(f"{name}.conv.depthwise_conv", 2 * d, 1, sizes.kernel_size, has_bias=False)
        norm(f"{name}.conv.batch_norm", 2 * d)
        linear(f"{name}.conv.pointwise_conv2", d, 2 * d, 1, has_bias=False)
        norm(f"{name}.layer_norm")
    for name in (f"decoder.layer_stack.{i}" for i in range(sizes.n_layers_dec)):
        for part in ("self_attn", "cross_attn"):
            norm(f"{name}.{part}_norm")
            for matrix in ("w_qs", "w_ks", "w_vs", "fc"):
                linear(f"{name}.{part}.{matrix}", d, d, has_bias=matrix != "w_ks")
        norm(f"{name}.mlp_norm")
        linear(f"{name}.mlp.w_1", 4 * d, d)
        linear(f"{name}.mlp.w_2", d, 4 * d)
    norm("decoder.layer_norm_out")
    return found


def recordings(num: int, seed: int = 0, longest: int = 90) -> list[Tensor]:
    """Make features [E, F] of many lengths: 1, and those around the borders of a position, among them."""
    generator = torch.Generator().manual_seed(seed)
    more = torch.randint(1, longest + 1, (num,), generator=generator).tolist()
    lengths = [1, 4, 5, 6, 7, 8, *more][:num]
    return [torch.randn(length, NUM_FEATURES, generator=generator) for length in lengths]
