"""Build a transformer from its checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pybeam.backends.packing import Quantised
from pybeam.models.checkpoint import Checkpoint
from pybeam.models.linear import PackedLinear
from pybeam.models.transformer.config import TransformerConfig
from pybeam.models.transformer.facts import Names, NormFacts, StackFacts
from pybeam.models.transformer.layers import Stack, TokenTable
from pybeam.models.transformer.model import Transformer, Weights
from pybeam.models.transformer.positions import (
    position_offset,
    sinusoidal_table,
    skips_padding,
    with_padding,
)
from pybeam.models.transformer.stacks import StackReader
from pybeam.models.weights import WeightReader

if TYPE_CHECKING:
    from pybeam.models.transformer.relative import RelativeBias

# the output layer's name where it is not `lm_head`
OUTPUTS = {"fsmt": "decoder.output_projection.weight", "whisper": "proj_out.weight"}


BART = Names(
    self_norm="self_attn_layer_norm",
    self_out="self_attn.out_proj",
    inner_norm="final_layer_norm",
    inner=("fc1",),
    inner_out="fc2",
)
T5_ENCODER = Names(
    layer="block.{}.layer.",
    self_norm="0.layer_norm",
    qkv=tuple(f"0.SelfAttention.{part}" for part in "qkv"),
    self_out="0.SelfAttention.o",
    inner_norm="1.layer_norm",
    inner=("1.DenseReluDense.wi",),
    inner_out="1.DenseReluDense.wo",
)
T5_DECODER = replace(
    T5_ENCODER,
    cross_norm="1.layer_norm",
    cross_query="1.EncDecAttention.q",
    cross_key_value=("1.EncDecAttention.k", "1.EncDecAttention.v"),
    cross_out="1.EncDecAttention.o",
    inner_norm="2.layer_norm",
    inner=("2.DenseReluDense.wi",),
    inner_out="2.DenseReluDense.wo",
)


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
        tied: TokenTable = reader.table(output_table)
        if isinstance(self.output, PackedLinear) and self.output.shares_weights:
            tied = self.output
        *source, self.target_table = (
            tied if table is output_table else reader.table(table) for table in tables
        )
        self.source_table = source[0] if source else None

    def model(self) -> Transformer:
        front = self.config.front
        if front is None:
            return Transformer(self._weights())
        # most models read tokens
        from pybeam.models.transformer.fronts import FrontConfig
        from pybeam.models.transformer.speech import SpeechTransformer, Subsampler

        assert isinstance(front, FrontConfig)
        return SpeechTransformer(self._weights(), Subsampler.read(self.reader, front))

    def _weights(self) -> Weights:
        # first what is large: it needs the most memory beside itself while it is packed
        cross_key_value = self._stack_reader("decoder").cross_key_value()
        return Weights(
            config=self.config,
            encoder=self._encoder(),
            decoder=self._stack("decoder", self.target_table),
            cross_key_value=cross_key_value,
            output=self.output,
            dtype=self.reader.dtype,
            weight_dtype=self.reader.weight_dtype,
            device=self.reader.device,
        )

    def _logit_bias(self) -> Tensor | None:
        if "final_logits_bias" not in self.checkpoint:
            return None
        bias = self._take("final_logits_bias", 1, self.config.vocab_size)[0]
        return bias if bias.any() else None

    def _table_names(self) -> list[tuple[str, int]]:
        """Return names and lengths of the token tables of encoder, if any, decoder and output."""
        config = self.config
        if config.relative is not None:
            of_each = [
                ["shared.weight", f"{stack}.embed_tokens.weight", "lm_head.weight"]
                for stack in ("encoder", "decoder")
            ]
            # where the file has it, it may differ from the token table, whatever the config says
            of_each.append(["lm_head.weight", *of_each[1]])
            return [(self.checkpoint.first(names), config.vocab_size) for names in of_each]
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

    def _encoder(self) -> Stack:
        return self._stack("encoder", self.source_table)

    def _facts(self, name: str) -> StackFacts:
        """Return the shapes and facts of a stack."""
        config, family, is_encoder = self.config, self.config.family, name == "encoder"
        is_relative = config.relative is not None
        heads = config.num_encoder_heads if is_encoder else config.num_decoder_heads
        names = (T5_ENCODER if is_encoder else T5_DECODER) if is_relative else BART
        if is_relative and config.is_gated:
            inner = names.inner[0]
            names = replace(names, inner=(f"{inner}_0", f"{inner}_1"))
        return StackFacts(
            names=names,
            norm=NormFacts(config.norm_epsilon, has_bias=not is_relative),
            num_layers=config.num_encoder_layers if is_encoder else config.num_decoder_layers,
            hidden_size=config.hidden_size,
            inner_size=config.encoder_inner_size if is_encoder else config.decoder_inner_size,
            num_heads=heads,
            num_key_heads=heads,
            head_size=config.head_size(heads),
            activation=config.activation,
            prefix=f"{name}.",
            is_pre_norm=family.is_pre_norm,
            has_cross=not is_encoder,
            is_gated=config.is_gated,
            has_qkv_bias=not is_relative,
            has_key_bias=family.has_key_bias and not is_relative,
            has_out_bias=not is_relative,
            has_inner_bias=not is_relative,
        )

    def _stack_reader(self, name: str) -> StackReader:
        """Return what reads the layers of a stack."""
        return StackReader(self.reader, self._facts(name))

    def _stack(self, name: str, table: TokenTable | None) -> Stack:
        config, family, facts = self.config, self.config.family, self._facts(name)
        reader, is_relative = self._stack_reader(name), config.relative is not None
        final = "final_layer_norm" if is_relative else "layer_norm"
        final_norm = reader.norm(final) if family.has_final_norm else None
        if final_norm is not None and name == "decoder":
            # the output layer reads what this norm gives
            final_norm.weight = final_norm.weight * config.output_scale
        layers = reader.layers()
        if is_relative:
            own = self._relative(name, len(layers))
            layers = tuple(
                replace(layer, relative=one) for layer, one in zip(layers, own, strict=True)
            )
        return Stack(
            token_table=table,
            position_table=nowhere(self.reader, config.hidden_size)
            if is_relative
            else self._positions(name),
            embedding_scale=config.embedding_scale,
            embedding_norm=reader.norm("layernorm_embedding")
            if family.has_embedding_norm
            else None,
            layers=layers,
            final_norm=final_norm,
            num_heads=facts.num_heads,
            num_key_heads=facts.num_heads,
            head_size=facts.head_size,
            # T5 has the scale in its weights
            scale=1.0 if is_relative else facts.head_size**-0.5,
            skipped_id=config.pad_id if self._is_padded(name) else -1,
        )

    def _relative(self, stack: str, num_layers: int) -> list[RelativeBias]:
        """Return the biases of each layer, which share one object if they share a table."""
        config, relative = self.config, self.config.relative
        assert relative is not None
        # most models have none
        from pybeam.models.transformer.relative import RelativeBias

        def own(i: int) -> RelativeBias:
            name = f"{stack}.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"
            weight = self._take(name, relative.num_buckets, config.num_encoder_heads)
            return RelativeBias.of_buckets(weight, relative, is_causal=stack == "decoder")

        if config.family.shares_relative:
            return [own(0)] * num_layers
        return [own(i) for i in range(num_layers)]

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
        return with_padding(config, table) if self._is_padded(stack) else table

    def _is_padded(self, stack: str) -> bool:
        return stack == "decoder" and skips_padding(self.config)


def nowhere(reader: WeightReader, size: int) -> Tensor:
    """Return a table of positions [0, d] that adds nothing."""
    return torch.empty(0, size, dtype=reader.dtype, device=reader.device)


def is_equal(one: Tensor | Quantised, other: Tensor | Quantised) -> bool:
    if isinstance(one, Quantised) and isinstance(other, Quantised):
        return is_equal(one.scale, other.scale) and is_equal(one.q, other.q)
    if isinstance(one, Tensor) and isinstance(other, Tensor) and one.dtype == other.dtype:
        return one is other or torch.equal(one, other)
    return False
