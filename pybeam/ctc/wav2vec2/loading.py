"""Build Wav2Vec2 from its checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from pybeam.backends.memory import on_host, weights_together
from pybeam.ctc.wav2vec2.config import Wav2Vec2Config, read_config
from pybeam.ctc.wav2vec2.model import Wav2Vec2, Weights
from pybeam.ctc.wav2vec2.parts import EPSILON, PositionConvolution, SoundConvolution, TimeNorm
from pybeam.models.checkpoint import Checkpoint
from pybeam.models.linear import Linear, PackedLinear, PlainLinear
from pybeam.models.loading import DTYPES, chosen_dtype, working_device
from pybeam.models.transformer.assembly import nowhere
from pybeam.models.transformer.facts import Names, NormFacts, StackFacts
from pybeam.models.transformer.layers import Stack
from pybeam.models.transformer.norms import Norm
from pybeam.models.transformer.stacks import StackReader
from pybeam.models.weights import WeightReader
from pybeam.text.model_files import blaming

PREFIX = "wav2vec2."
LAYER = Names(
    self_norm="layer_norm",
    qkv=tuple(f"attention.{part}_proj" for part in "qkv"),
    self_out="attention.out_proj",
    inner_norm="final_layer_norm",
    inner=("feed_forward.intermediate_dense",),
    inner_out="feed_forward.output_dense",
)
# names of a weight's length and of its direction: of today, and of years ago
NORMED = (
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    ("weight_g", "weight_v"),
)


@on_host()
@weights_together()
def load_model(
    path: str | os.PathLike[str],
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    backend: str = "auto",
) -> Wav2Vec2:
    """Load a network with a CTC layer: `Wav2Vec2ForCTC`, as transformers saves it.

    The folder needs `config.json` and `model.safetensors`, or shards. Layers are those of pybeam's
    transformers, and in int8 and bfloat16 as fast; the convolutions of sound have these dtypes, too.

    Args:
        path: the folder.
        device, dtype: see `pybeam.load_model`.
        backend: see `pybeam.ops`.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a file, field or tensor is missing or wrong, or the network is another one.

    See Baevski et al. 2020 (arXiv:2006.11477).
    """
    directory = Path(path)
    config = read_config(directory)
    target = working_device(device)
    with blaming(directory):
        checkpoint = Checkpoint(directory)
        reader = WeightReader(
            checkpoint, target, chosen_dtype("dtype", dtype, DTYPES), "lm_head.weight"
        )
        weights = _Assembly(config, reader).weights()
        # in its place training had frames that it hid
        checkpoint.stored.pop(f"{PREFIX}masked_spec_embed", None)
        checkpoint.close()
    return Wav2Vec2(config, weights, target, reader.dtype, backend)


class _Assembly:
    def __init__(self, config: Wav2Vec2Config, reader: WeightReader) -> None:
        self._config, self._reader = config, reader

    def weights(self) -> Weights:
        config, d = self._config, self._config.hidden_size
        stack = StackReader(self._reader, self._facts())
        norm = stack.norm("layer_norm")
        size, channels = d // config.num_heads, config.convolutions[-1].num_channels
        name = f"{PREFIX}feature_projection"
        return Weights(
            sound=self._sound(),
            projection_norm=self._norm(f"{name}.layer_norm", channels, config.norm_epsilon),
            projection=self._linear(f"{name}.projection", d, channels),
            positions=self._positions(),
            norm=None if config.is_pre_norm else norm,
            encoder=Stack(
                token_table=None,
                position_table=nowhere(self._reader, d),
                layers=stack.layers(),
                num_heads=config.num_heads,
                num_key_heads=config.num_heads,
                head_size=size,
                scale=size**-0.5,
                final_norm=norm if config.is_pre_norm else None,
            ),
            output=self._linear("lm_head", config.vocab_size, d),
        )

    def _facts(self) -> StackFacts:
        config = self._config
        return StackFacts(
            names=LAYER,
            norm=NormFacts(config.norm_epsilon),
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            inner_size=config.inner_size,
            num_heads=config.num_heads,
            num_key_heads=config.num_heads,
            head_size=config.hidden_size // config.num_heads,
            activation=config.activation,
            prefix=f"{PREFIX}encoder.",
            is_pre_norm=config.is_pre_norm,
        )

    def _norm(self, name: str, size: int, epsilon: float) -> Norm:
        weight, bias = (self._reader.vector(f"{name}.{part}", size) for part in ("weight", "bias"))
        return Norm(weight, bias, epsilon, is_packed=self._reader.is_packed)

    def _linear(self, name: str, rows: int, columns: int) -> Linear:
        weight = self._reader.matrix([f"{name}.weight"], rows, columns)
        return self._reader.linear(weight, self._reader.vector(f"{name}.bias", rows))

    def _sound(self) -> tuple[SoundConvolution, ...]:
        config, reader, columns = self._config, self._reader, 1
        found = []
        for i, one in enumerate(config.convolutions):
            name, rows = f"{PREFIX}feature_extractor.conv_layers.{i}", one.num_channels
            weight = reader.vector(f"{name}.conv.weight", rows, columns, one.kernel_size)
            bias = reader.vector(f"{name}.conv.bias", rows) if config.has_conv_bias else None
            norm: Norm | TimeNorm | None = None
            if config.has_all_norms:
                norm = self._norm(f"{name}.layer_norm", rows, EPSILON)
            elif i == 0:
                parts = (
                    reader.vector(f"{name}.layer_norm.{part}", rows) for part in ("weight", "bias")
                )
                norm = TimeNorm(*parts)
            activation = None if norm is not None else config.conv_activation
            linear = self._computed(weight.flatten(1), bias, activation)
            found.append(
                SoundConvolution(linear, one.kernel_size, one.stride, norm, config.conv_activation)
            )
            columns = rows
        return tuple(found)

    def _positions(self) -> PositionConvolution:
        config, reader = self._config, self._reader
        size = config.hidden_size // config.position_groups
        name, kernel = f"{PREFIX}encoder.pos_conv_embed.conv", config.position_kernel
        names = next((one for one in NORMED if f"{name}.{one[0]}" in reader.checkpoint), NORMED[0])
        length = reader.vector(f"{name}.{names[0]}", 1, 1, kernel)
        direction = reader.vector(f"{name}.{names[1]}", config.hidden_size, size, kernel)
        norm = torch.linalg.vector_norm(direction.float(), dim=(0, 1), keepdim=True)
        weight = (direction * (length / norm)).to(reader.dtype)
        bias = reader.vector(f"{name}.bias", config.hidden_size)
        groups = zip(weight.flatten(1).split(size), bias.split(size), strict=True)
        return PositionConvolution(
            tuple(self._computed(*one, config.conv_activation) for one in groups), kernel
        )

    def _computed(self, weight: Tensor, bias: Tensor | None, activation: str | None) -> Linear:
        """Make a layer of weights that are computed, or few: they keep the dtype of activations."""
        kind = PackedLinear if self._reader.is_packed else PlainLinear
        return kind(weight.contiguous(), bias, activation)
