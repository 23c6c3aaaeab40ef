"""Build a transformer from its checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.models.checkpoint import Checkpoint
from pybeam.models.linear import Linear, PackedLinear, PlainLinear, can_pack
from pybeam.models.transformer.config import GATE, FrontConfig, TransformerConfig
from pybeam.models.transformer.layers import DecoderLayer, EncoderLayer, Norm, Stack
from pybeam.models.transformer.model import Transformer, Weights
from pybeam.models.transformer.positions import position_offset, sinusoidal_table
from pybeam.models.transformer.speech import SpeechTransformer, Subsampler

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
        self.config, self.checkpoint, self.device = config, checkpoint, device
        tables = self._tables()
        if dtype is None:
            dtype = torch.float32 if device.type == "cpu" else tables[0].dtype
        self.weight_dtype = dtype
        self.is_packed = can_pack(device, dtype)
        self.dtype = torch.float32 if self.is_packed else dtype
        # equal tables are the same tensor: it is converted once, and kept once
        moved: dict[int, Tensor] = {}
        for table in tables:
            if id(table) not in moved:
                moved[id(table)] = self._moved(table, dtype)
        *source, self.target_table, self.output_table = (moved[id(table)] for table in tables)
        self.source_table = source[0] if source else None

    def model(self) -> Transformer:
        config = self.config
        bias = None
        if "final_logits_bias" in self.checkpoint:
            bias = self._take("final_logits_bias", 1, config.vocab_size)[0]
            bias = bias if bias.any() else None
        output = self._pack(self.output_table, bias)
        d = config.hidden_size
        names = [
            f"decoder.layers.{i}.encoder_attn.{part}_proj"
            for i in range(config.num_decoder_layers)
            for part in "kv"
        ]
        weights = Weights(
            config=config,
            encoder=self._encoder(output),
            decoder=self._decoder(output),
            cross_key_value=self._linear(names, d, d),
            output=output,
            dtype=self.dtype,
            weight_dtype=self.weight_dtype,
            device=self.device,
        )
        if config.front is None:
            return Transformer(weights)
        return SpeechTransformer(weights, self._subsampler(config.front))

    def _subsampler(self, front: FrontConfig) -> Subsampler:
        layers, columns = [], front.num_features
        is_gated = front.activation == GATE
        for convolution in front.convolutions:
            rows, name = convolution.num_channels, f"encoder.{convolution.name}"
            shape = rows, columns, convolution.kernel_size
            weight = self._take(f"{name}.weight", *shape, dtype=self.weight_dtype)
            # windows are flattened position by position
            weight = weight.transpose(1, 2).flatten(1).contiguous()  # [rows, k * columns]
            bias = self._take(f"{name}.bias", rows)
            layers.append(self._pack(weight, bias, None if is_gated else front.activation))
            columns = rows // 2 if is_gated else rows
        return Subsampler(layers, front)

    def _tables(self) -> list[Tensor]:
        """Return the token tables of encoder, if any, decoder and output. Tied tables are one tensor."""
        config = self.config
        own = [OUTPUTS.get(config.model_type, "lm_head.weight")]
        shared, source, target = (
            "shared.weight",
            "encoder.embed_tokens.weight",
            "decoder.embed_tokens.weight",
        )
        d = config.hidden_size
        is_joint = config.source_vocab_size == config.vocab_size
        tied = own if config.ties_embeddings else []
        # prefer the more specific name: files of untied models may hold the shared table too
        tables = []
        if config.front is None:
            names = [source, shared, *([target, *tied] if is_joint else [])]
            tables.append(self.checkpoint.take_first(names, config.source_vocab_size, d))
        names = [target, shared, *tied, *([source] if is_joint else [])]
        tables.append(self.checkpoint.take_first(names, config.vocab_size, d))
        # FSMT has always used the decoder's table for the output, whatever its config says
        names = own
        if config.ties_embeddings or config.model_type == "fsmt":
            names = [*own, target, shared, *([source] if is_joint else [])]
        tables.append(self.checkpoint.take_first(names, config.vocab_size, d))
        for i in range(1, len(tables)):
            for earlier in tables[:i]:
                if earlier.shape == tables[i].shape and torch.equal(earlier, tables[i]):
                    tables[i] = earlier
        return tables

    def _token_table(self, table: Tensor, output: Linear) -> Tensor | PackedLinear:
        """Return the table, or the packed output layer instead of a second copy."""
        if table is self.output_table and isinstance(output, PackedLinear):
            return output
        return table

    def _encoder(self, output: Linear) -> Stack[EncoderLayer]:
        config, table = self.config, self.source_table
        return Stack(
            token_table=None if table is None else self._token_table(table, output),
            position_table=self._positions("encoder"),
            embedding_scale=config.embedding_scale,
            embedding_norm=self._embedding_norm("encoder"),
            layers=tuple(
                self._encoder_layer(f"encoder.layers.{i}.", config.encoder_inner_size)
                for i in range(config.num_encoder_layers)
            ),
            final_norm=self._final_norm("encoder"),
            num_heads=config.num_encoder_heads,
        )

    def _decoder(self, output: Linear) -> Stack[DecoderLayer]:
        config = self.config
        return Stack(
            token_table=self._token_table(self.target_table, output),
            position_table=self._positions("decoder"),
            embedding_scale=config.embedding_scale,
            embedding_norm=self._embedding_norm("decoder"),
            layers=tuple(
                self._decoder_layer(f"decoder.layers.{i}.")
                for i in range(config.num_decoder_layers)
            ),
            final_norm=self._final_norm("decoder"),
            num_heads=config.num_decoder_heads,
        )

    def _embedding_norm(self, stack: str) -> Norm | None:
        has_one = self.config.family.has_embedding_norm
        return self._norm(f"{stack}.layernorm_embedding") if has_one else None

    def _final_norm(self, stack: str) -> Norm | None:
        has_one = self.config.family.has_final_norm
        return self._norm(f"{stack}.layer_norm") if has_one else None

    def _positions(self, stack: str) -> Tensor:
        """Return the position table [positions, d] of a stack: the file's, or else the formula's."""
        config = self.config
        offset = position_offset(config)
        is_encoder = stack == "encoder"
        num_positions = config.max_source_positions if is_encoder else config.max_positions
        num = offset + num_positions
        names = [f"{stack}.embed_positions.{end}" for end in ("weight", "weights")]
        stored = [name for name in names if name in self.checkpoint]
        has_formula = config.family.positions in ("sinusoidal", "marian")
        if not stored and has_formula:
            table = sinusoidal_table(config, num_positions)
        else:
            name, *_ = [*stored, *names]
            # tables from a formula may be longer than the config says
            if has_formula:
                num = max(num, self.checkpoint.num_rows(name))
            table = self.checkpoint.take(name, num, config.hidden_size)
        return self._moved(table[offset : offset + num_positions], self.dtype)

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
        same = self._encoder_layer(prefix, self.config.decoder_inner_size)
        return DecoderLayer(
            self_norm=same.self_norm,
            qkv=same.qkv,
            self_out=same.self_out,
            inner_norm=same.inner_norm,
            inner=same.inner,
            inner_out=same.inner_out,
            cross_norm=self._norm(f"{prefix}encoder_attn_layer_norm"),
            cross_query=self._linear([f"{prefix}encoder_attn.q_proj"], d, d),
            cross_out=self._linear([f"{prefix}encoder_attn.out_proj"], d, d),
        )

    def _norm(self, name: str) -> Norm:
        size = self.config.hidden_size
        weight, bias = (self._take(f"{name}.{part}", size) for part in ("weight", "bias"))
        return Norm(weight, bias, is_packed=self.is_packed)

    def _linear(
        self, names: list[str], rows: int, columns: int, activation: str | None = None
    ) -> Linear:
        """Join several linear layers into one, with their outputs one after another."""
        weight = torch.cat(
            [self._take(f"{name}.weight", rows, columns, dtype=self.weight_dtype) for name in names]
        )
        bias = torch.cat([self._bias(name, rows) for name in names])
        return self._pack(weight, bias, activation)

    def _bias(self, name: str, rows: int) -> Tensor:
        if name.endswith("k_proj") and not self.config.family.has_key_bias:
            return torch.zeros(rows, dtype=self.dtype, device=self.device)
        return self._take(f"{name}.bias", rows)

    def _pack(self, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> Linear:
        return (PackedLinear if self.is_packed else PlainLinear)(weight, bias, activation)

    def _take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return self._moved(self.checkpoint.take(name, *shape), dtype or self.dtype)

    def _moved(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(device=self.device, dtype=dtype).contiguous()
