"""Shapes and facts of a Wav2Vec2 checkpoint, from `config.json` as transformers writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pybeam.models.fields import Fields
from pybeam.models.linear import ACTIVATIONS
from pybeam.text.json_files import LARGEST, MAX_LAYERS, read_json

MODEL_TYPE = "wav2vec2"
# of a convolution over time: windows of so many positions are copied
LARGEST_KERNEL = 1 << 12
CHANNELS, KERNELS = [512] * 7, [10, 3, 3, 3, 3, 2, 2]
STRIDES = [5, 2, 2, 2, 2, 2, 2]
# layers that these fields add are of other models
ABSENT = ("add_adapter", "adapter_attn_dim")


@dataclass(frozen=True)
class Convolution:
    """A convolution over time that sees nothing beyond the ends."""

    num_channels: int
    kernel_size: int
    stride: int

    def num_positions(self, size: int) -> int:
        """Return how many places it makes of so many."""
        return max(0, (size - self.kernel_size) // self.stride + 1)


@dataclass(frozen=True)
class Wav2Vec2Config:
    """Shapes and facts of the encoder and its layer of tokens.

    Attributes:
        blank: the token that stands for none.
        is_pre_norm: a sublayer is ``x + f(norm(x))``, else ``norm(x + f(x))``.
        has_all_norms: every convolution of sound has a norm over channels; else the first alone has one, over
            time.
        position_kernel, position_groups: of the convolution whose results stand for positions.
    """

    path: Path
    vocab_size: int
    blank: int
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    activation: str
    is_pre_norm: bool
    norm_epsilon: float
    convolutions: tuple[Convolution, ...]
    conv_activation: str
    has_conv_bias: bool
    has_all_norms: bool
    position_kernel: int
    position_groups: int

    @property
    def stride(self) -> int:
        """Samples from one frame to the next."""
        return math.prod(one.stride for one in self.convolutions)

    def num_frames(self, num_samples: int) -> int:
        """Return how many frames so many samples become."""
        for one in self.convolutions:
            num_samples = one.num_positions(num_samples)
        return num_samples


def read_config(directory: Path) -> Wav2Vec2Config:
    """Read `config.json`.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the file or a field is missing or wrong, or the network is another one.
    """
    if not directory.is_dir():
        raise FileNotFoundError(
            f"`path` must be a folder with a model of CTC, but none is at {directory}; `pybeam.load` takes a "
            "name on the hub, too"
        )
    path = directory / "config.json"
    fields = Fields(path, read_json(path))
    if fields.get("model_type") != MODEL_TYPE:
        raise fields.error("model_type", f"{MODEL_TYPE!r}")
    for name in ABSENT:
        fields.expect(name, (None, False))
    hidden_size = fields.size("hidden_size", 768)
    num_heads = fields.size("num_attention_heads", 12)
    groups = fields.size("num_conv_pos_embedding_groups", 16)
    for name, number in (
        ("num_attention_heads", num_heads),
        ("num_conv_pos_embedding_groups", groups),
    ):
        if hidden_size % number:
            raise fields.error(name, f"a divisor of `hidden_size`, {hidden_size}")
    vocab_size = fields.size("vocab_size", 32)
    blank = fields.optional_size("pad_token_id", 0, 0)
    if blank is None or blank >= vocab_size:
        raise fields.error("pad_token_id", f"the blank, a token below {vocab_size}")
    return Wav2Vec2Config(
        path=path,
        vocab_size=vocab_size,
        blank=blank,
        hidden_size=hidden_size,
        inner_size=fields.size("intermediate_size", 3072),
        num_layers=fields.size("num_hidden_layers", 12, MAX_LAYERS),
        num_heads=num_heads,
        activation=fields.choice("hidden_act", "gelu", ACTIVATIONS),
        is_pre_norm=fields.flag("do_stable_layer_norm", False),
        norm_epsilon=fields.number("layer_norm_eps", 1e-5),
        convolutions=_convolutions(fields),
        conv_activation=fields.choice("feat_extract_activation", "gelu", ACTIVATIONS),
        has_conv_bias=fields.flag("conv_bias", False),
        has_all_norms=fields.choice("feat_extract_norm", "group", ("group", "layer")) == "layer",
        position_kernel=fields.size("num_conv_pos_embeddings", 128, LARGEST_KERNEL),
        position_groups=groups,
    )


def _convolutions(fields: Fields) -> tuple[Convolution, ...]:
    lists = []
    for name, default, most in (
        ("conv_dim", CHANNELS, LARGEST),
        ("conv_kernel", KERNELS, LARGEST_KERNEL),
        ("conv_stride", STRIDES, LARGEST_KERNEL),
    ):
        values = fields.get(name, default)
        is_list = isinstance(values, list) and 1 <= len(values) <= MAX_LAYERS
        if not is_list or not all(type(one) is int and 1 <= one <= most for one in values):
            raise fields.error(name, f"a list of positive integers up to {most}")
        lists.append(values)
    if len({*map(len, lists)}) > 1:
        raise fields.error("conv_kernel", "as many as `conv_dim` and `conv_stride` have")
    return tuple(Convolution(*one) for one in zip(*lists, strict=True))
