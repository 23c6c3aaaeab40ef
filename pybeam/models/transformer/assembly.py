"""Build a transformer from its checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.backends.packing import Quantised
from pybeam.models.checkpoint import Checkpoint
from pybeam.models.linear import Linear, PackedLinear
from pybeam.models.transformer.config import GATE, FrontConfig, TransformerConfig
from pybeam.models.transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    Norm,
    Stack,
    TokenTable,
)
from pybeam.models.transformer.model import Transformer, Weights
from pybeam.models.transformer.positions import (
    position_offset,
    sinusoidal_table,
    skips_padding,
    with_padding,
)
from pybeam.models.transformer.speech import SpeechTransformer, Subsampler
from pybeam.models.weights import WeightReader

# the output layer's name where it is not `lm_head`
OUTPUTS = {"fsmt": "decoder.output_projection.weight", "whisper": "proj_out.weight"}


class Assembly:
    """Build the parts of one model from its checkpoint, on one device and in one dtype."""

    def __init__(
        self,
        config: TransformerConfig,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        self.config, self.checkpoint = config, checkpoint
        names = self._table_names()
        self.reader = reader = WeightReader(checkpoint, device, dtype, names[0][0])
        self._take = reader.vector
        *tables, output_table = self._tables(names)
        self.output = reader.linear(output_table, self._logit_bias())
        # a packed layer is looked up in, instead of a second copy
        tied: TokenTable = output_table
        if isinstance(self.output, PackedLinear) and self.output.shares_weights:
            tied = self.output
        own: dict[int, TokenTable] = {id(output_table): tied}
        for (name, _), table in zip(names, tables, strict=False):
            if id(table) not in own:
                own[id(table)] = reader.looked_up(name, table)
        *source, self.target_table = (own[id(table)] for table in tables)
        self.source_table = source[0] if source else None

    def model(self) -> Transformer:
        front = self.config.front
        if isinstance(front, FrontConfig):
            return SpeechTransformer(self._weights(), self._subsampler(front))
        return Transformer(self._weights())

    def _weights(self) -> Weights:
        # first what is large: it needs the most memory beside itself while it is packed
        cross_key_value = self._cross_key_value()
        return Weights(
            config=self.config,
            encoder=self._encoder(),
            decoder=self._decoder(),
            cross_key_value=cross_key_value,
            output=self.output,
            dtype=self.reader.dtype,
            weight_dtype=self.reader.weight_dtype,
            device=self.reader.device,
        )

    def _cross_key_value(self) -> Linear:
        d = self.config.hidden_size
        names = [
            f"decoder.layers.{i}.encoder_attn.{part}_proj"
            for i in range(self.config.num_decoder_layers)
            for part in "kv"
        ]
        return self._linear(names, d, d)

    def _logit_bias(self) -> Tensor | None:
        if "final_logits_bias" not in self.checkpoint:
            return None
        bias = self._take("final_logits_bias", 1, self.config.vocab_size)[0]
        return bias if bias.any() else None

    def _subsampler(self, front: FrontConfig) -> Subsampler:
        layers, columns = [], front.num_features
        is_gated = front.activation == GATE
        for convolution in front.convolutions:
            rows, name = convolution.num_channels, f"encoder.{convolution.name}"
            shape = rows, columns, convolution.kernel_size
            weight = by_position(self.reader.matrix([f"{name}.weight"], *shape))
            bias = self._take(f"{name}.bias", rows)
            activation = None if is_gated else front.activation
            layers.append(self.reader.linear(weight, bias, activation))
            columns = rows // 2 if is_gated else rows
        return Subsampler(layers, front)

    def _table_names(self) -> list[tuple[str, int]]:
        """Return names and lengths of the token tables of encoder, if any, decoder and output."""
        config = self.config
        own = [OUTPUTS.get(config.model_type, "lm_head.weight")]
        shared, source, target = (
            "shared.weight",
            "encoder.embed_tokens.weight",
            "decoder.embed_tokens.weight",
        )
        is_joint = config.source_vocab_size == config.vocab_size
        tied = own if config.ties_embeddings else []
        # prefer the more specific name: files of untied models may hold the shared table too
        tables = []
        if config.front is None:
            names = [source, shared, *([target, *tied] if is_joint else [])]
            tables.append((self.checkpoint.first(names), config.source_vocab_size))
        names = [target, shared, *tied, *([source] if is_joint else [])]
        tables.append((self.checkpoint.first(names), config.vocab_size))
        # FSMT has always used the decoder's table for the output, whatever its config says
        names = own
        if config.ties_embeddings or config.model_type == "fsmt":
            names = [*own, target, shared, *([source] if is_joint else [])]
        tables.append((self.checkpoint.first(names), config.vocab_size))
        return tables

    def _tables(self, names: list[tuple[str, int]]) -> list[Tensor | Quantised]:
        """Return these token tables. Those that are equal are the same object."""
        found: dict[tuple[str, int], Tensor | Quantised] = {}
        for name, num_rows in names:
            if (name, num_rows) in found:
                continue
            table = self.reader.matrix([name], num_rows, self.config.hidden_size)
            earlier = (one for one in found.values() if is_equal(one, table))
            found[name, num_rows] = next(earlier, table)
        return [found[key] for key in names]

    def _encoder(self) -> Stack[EncoderLayer]:
        config = self.config
        return Stack(
            token_table=self.source_table,
            position_table=self._positions("encoder"),
            embedding_scale=config.embedding_scale,
            embedding_norm=self._embedding_norm("encoder"),
            layers=tuple(
                self._encoder_layer(f"encoder.layers.{i}.", config.encoder_inner_size)
                for i in range(config.num_encoder_layers)
            ),
            final_norm=self._final_norm("encoder"),
            num_heads=config.num_encoder_heads,
            head_size=config.head_size(config.num_encoder_heads),
            scale=config.head_size(config.num_encoder_heads) ** -0.5,
        )

    def _decoder(self) -> Stack[DecoderLayer]:
        config = self.config
        return Stack(
            token_table=self.target_table,
            position_table=self._positions("decoder"),
            embedding_scale=config.embedding_scale,
            embedding_norm=self._embedding_norm("decoder"),
            layers=tuple(
                self._decoder_layer(f"decoder.layers.{i}.")
                for i in range(config.num_decoder_layers)
            ),
            final_norm=self._final_norm("decoder"),
            num_heads=config.num_decoder_heads,
            head_size=config.head_size(config.num_decoder_heads),
            scale=config.head_size(config.num_decoder_heads) ** -0.5,
        )

    def _embedding_norm(self, stack: str) -> Norm | None:
        has_one = self.config.family.has_embedding_norm
        return self._norm(f"{stack}.layernorm_embedding") if has_one else None

    def _final_norm(self, stack: str) -> Norm | None:
        has_one = self.config.family.has_final_norm
        return self._norm(f"{stack}.layer_norm") if has_one else None

    def _positions(self, stack: str) -> Tensor:
        """Return the position table of a stack: the file's, or else the formula's."""
        config = self.config
        offset = position_offset(config)
        is_encoder = stack == "encoder"
        num_positions = config.max_source_positions if is_encoder else config.max_positions
        assert num_positions is not None
        num = offset + num_positions
        names = [f"{stack}.embed_positions.{end}" for end in ("weight", "weights")]
        stored = [name for name in names if name in self.checkpoint]
        has_formula = config.family.positions in ("sinusoidal", "marian", "interleaved")
        if not stored and has_formula:
            table = sinusoidal_table(config, num_positions)
            table = table.to(device=self.reader.device, dtype=self.reader.dtype)
        else:
            name, *_ = [*stored, *names]
            # tables from a formula may be longer than the config says
            if has_formula:
                num = max(num, self.checkpoint.num_rows(name))
            table = self._take(name, num, config.hidden_size)
        table = table[offset : offset + num_positions]
        is_padded = not is_encoder and skips_padding(config)
        return with_padding(config, table) if is_padded else table

    def _encoder_layer(self, prefix: str, inner_size: int) -> EncoderLayer:
        d = self.config.hidden_size
        return EncoderLayer(
            self_norm=self._norm(f"{prefix}self_attn_layer_norm"),
            qkv=self._linear([f"{prefix}self_attn.{part}_proj" for part in "qkv"], d, d),
            self_out=self._linear([f"{prefix}self_attn.out_proj"], d, d),
            inner_norm=self._norm(f"{prefix}final_layer_norm"),
            inner=self._linear([f"{prefix}fc1"], inner_size, d, self.config.activation),
            inner_out=self._linear([f"{prefix}fc2"], d, inner_size),
        )

    def _decoder_layer(self, prefix: str) -> DecoderLayer:
        d = self.config.hidden_size
        return self._encoder_layer(prefix, self.config.decoder_inner_size).with_cross(
            norm=self._norm(f"{prefix}encoder_attn_layer_norm"),
            query=self._linear([f"{prefix}encoder_attn.q_proj"], d, d),
            out=self._linear([f"{prefix}encoder_attn.out_proj"], d, d),
        )

    def _norm(self, name: str) -> Norm:
        size = self.config.hidden_size
        weight, bias = (self._take(f"{name}.{part}", size) for part in ("weight", "bias"))
        return Norm(weight, bias, is_packed=self.reader.is_packed)

    def _linear(
        self, names: list[str], rows: int, columns: int, activation: str | None = None
    ) -> Linear:
        """Join several linear layers into one, with their outputs one after another."""
        weight = self.reader.matrix([f"{name}.weight" for name in names], rows, columns)
        bias = torch.cat([self._bias(name, rows) for name in names])
        return self.reader.linear(weight, bias, activation)

    def _bias(self, name: str, rows: int) -> Tensor:
        if name.endswith("k_proj") and not self.config.family.has_key_bias:
            return torch.zeros(rows, dtype=self.reader.dtype, device=self.reader.device)
        return self._take(f"{name}.bias", rows)


def is_equal(one: Tensor | Quantised, other: Tensor | Quantised) -> bool:
    if isinstance(one, Quantised) and isinstance(other, Quantised):
        return torch.equal(one.scale, other.scale) and torch.equal(one.q, other.q)
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)


def by_position(weight: Tensor | Quantised) -> Tensor | Quantised:
    """Flatten windows of a convolution [rows, columns, k], position by position: [rows, k * columns]."""
    windows = weight.q if isinstance(weight, Quantised) else weight
    flat = windows.transpose(1, 2).flatten(1).contiguous()
    return Quantised(flat, weight.scale) if isinstance(weight, Quantised) else flat
