"""Build T5 and its kin from their checkpoints: T5, Flan-T5, MADLAD, ByT5, mT5, UMT5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pybeam.backends.packing import Quantised
from pybeam.models.linear import GatedLinear, Linear
from pybeam.models.norms import RMSNorm
from pybeam.models.transformer.assembly import Assembly
from pybeam.models.transformer.layers import DecoderLayer, EncoderLayer, Stack, TokenTable
from pybeam.models.transformer.relative import RelativeBias


class T5Assembly(Assembly):
    """Builds the parts of a model with relative positions, unscaled attention and norms without bias."""

    def _table_names(self) -> list[tuple[str, int]]:
        size = self.config.vocab_size
        source = ["shared.weight", "encoder.embed_tokens.weight", "lm_head.weight"]
        target = ["shared.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
        # where the file has it, it may differ from the token table, whatever the config says
        output = ["lm_head.weight", *target]
        return [(self.checkpoint.first(names), size) for names in (source, target, output)]

    def _cross_key_value(self) -> Linear:
        names = [
            f"decoder.block.{i}.layer.1.EncDecAttention.{part}"
            for i in range(self.config.num_decoder_layers)
            for part in "kv"
        ]
        return self._projections(names)

    def _encoder(self) -> Stack[EncoderLayer]:
        layers = [self._layer("encoder", i) for i in range(self.config.num_encoder_layers)]
        return self._stack("encoder", layers, self.source_table)

    def _decoder(self) -> Stack[DecoderLayer]:
        layers = [self._with_cross(i) for i in range(self.config.num_decoder_layers)]
        return self._stack("decoder", layers, self.target_table)

    def _stack(
        self, name: str, layers: Sequence[EncoderLayer], table: TokenTable | None
    ) -> Stack[Any]:
        config = self.config
        norm = self._rms_norm(f"{name}.final_layer_norm")
        if name == "decoder":
            # the output layer reads what this norm gives
            norm.weight = norm.weight * config.output_scale
        return Stack(
            token_table=table,
            position_table=self._no_positions(),
            embedding_scale=config.embedding_scale,
            embedding_norm=None,
            layers=tuple(layers),
            final_norm=norm,
            num_heads=config.num_encoder_heads,
            head_size=config.head_size(config.num_encoder_heads),
            scale=1.0,
            relative=self._relative(name, len(layers)),
        )

    def _layer(self, stack: str, i: int) -> EncoderLayer:
        """Take a layer of the encoder, or what a layer of the decoder shares with it."""
        last = 2 if stack == "decoder" else 1
        own, inner = f"{stack}.block.{i}.layer.0", f"{stack}.block.{i}.layer.{last}"
        d, inner_size = self.config.hidden_size, self.config.encoder_inner_size
        return EncoderLayer(
            self_norm=self._rms_norm(f"{own}.layer_norm"),
            qkv=self._projections([f"{own}.SelfAttention.{part}" for part in "qkv"]),
            self_out=self._out(f"{own}.SelfAttention.o"),
            inner_norm=self._rms_norm(f"{inner}.layer_norm"),
            inner=self._inner(f"{inner}.DenseReluDense"),
            inner_out=self._matrices([f"{inner}.DenseReluDense.wo"], d, inner_size),
        )

    def _with_cross(self, i: int) -> DecoderLayer:
        cross = f"decoder.block.{i}.layer.1"
        return self._layer("decoder", i).with_cross(
            norm=self._rms_norm(f"{cross}.layer_norm"),
            query=self._projections([f"{cross}.EncDecAttention.q"]),
            out=self._out(f"{cross}.EncDecAttention.o"),
        )

    def _inner(self, prefix: str) -> Linear | GatedLinear:
        config = self.config
        rows, columns = config.encoder_inner_size, config.hidden_size
        if not config.is_gated:
            return self._matrices([f"{prefix}.wi"], rows, columns, config.activation)
        both = self._matrices([f"{prefix}.wi_0", f"{prefix}.wi_1"], rows, columns)
        return GatedLinear(both, config.activation)

    def _relative(self, stack: str, num_layers: int) -> list[RelativeBias]:
        """Return the biases of each layer, which share one object if they share a table."""
        config = self.config
        relative = config.relative
        assert relative is not None

        def own(i: int) -> RelativeBias:
            name = f"{stack}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"
            weight = self._take(name, relative.num_buckets, config.num_encoder_heads)
            return RelativeBias.of_buckets(weight, relative, is_causal=stack == "decoder")

        if config.family.shares_relative:
            return [own(0)] * num_layers
        return [own(i) for i in range(num_layers)]

    def _projections(self, names: list[str]) -> Linear:
        """Take matrices to queries, keys or values, whose sizes need not be those of the states."""
        config = self.config
        rows = config.num_encoder_heads * config.head_size(config.num_encoder_heads)
        return self._matrices(names, rows, config.hidden_size)

    def _out(self, name: str) -> Linear:
        config = self.config
        columns = config.num_encoder_heads * config.head_size(config.num_encoder_heads)
        return self._matrices([name], config.hidden_size, columns)

    def _matrices(
        self, names: list[str], rows: int, columns: int, activation: str | None = None
    ) -> Linear:
        """Join several matrices into one layer, with their outputs one after another."""
        weight: Tensor | Quantised = self.reader.matrix(
            [f"{name}.weight" for name in names], rows, columns
        )
        return self.reader.linear(weight, None, activation)

    def _rms_norm(self, name: str) -> RMSNorm:
        weight = self._take(f"{name}.weight", self.config.hidden_size)
        return RMSNorm(weight, self.config.norm_epsilon, is_packed=self.reader.is_packed)

    def _no_positions(self) -> Tensor:
        size, reader = self.config.hidden_size, self.reader
        return torch.empty(0, size, dtype=reader.dtype, device=reader.device)
