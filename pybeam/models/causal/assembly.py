"""Build a decoder-only transformer from its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends.packing import Quantised
from pybeam.models.causal.config import CausalConfig
from pybeam.models.causal.layers import CausalLayer, CausalStack
from pybeam.models.causal.model import CausalTransformer
from pybeam.models.causal.rotary import RotaryTable
from pybeam.models.checkpoint import Checkpoint
from pybeam.models.linear import ACTIVATIONS, Linear, PackedLinear
from pybeam.models.norms import RMSNorm
from pybeam.models.transformer.assembly import is_equal
from pybeam.models.transformer.layers import TokenTable
from pybeam.models.weights import WeightReader

TOKENS, OUTPUT = "embed_tokens.weight", "lm_head.weight"


class CausalAssembly:
    """Build the parts of one model from its checkpoint, on one device and in one dtype."""

    def __init__(
        self,
        config: CausalConfig,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        self.config, self.checkpoint = config, checkpoint
        self.reader = WeightReader(checkpoint, device, dtype, checkpoint.first([TOKENS, OUTPUT]))

    def model(self) -> CausalTransformer:
        config, reader = self.config, self.reader
        tokens, table = self._tables()
        output = reader.linear(table, None)
        token_table: TokenTable = tokens
        if tokens is not table:
            token_table = reader.looked_up(TOKENS, tokens)
        elif isinstance(output, PackedLinear) and output.shares_weights:
            # it is looked up in, instead of a second copy
            token_table = output
        stack = CausalStack(
            token_table=token_table,
            embedding_scale=config.embedding_scale,
            layers=tuple(self._layer(i) for i in range(config.num_layers)),
            final_norm=self._norm("norm", config.hidden_size),
            num_heads=config.num_heads,
            num_key_heads=config.num_key_heads,
            head_size=config.head_size,
            activation=ACTIVATIONS[config.activation],
            rotary=tuple(
                RotaryTable(one, config.max_positions, reader.device) for one in config.frequencies
            ),
            scale=config.scale,
            soft_cap=config.soft_cap,
            output_soft_cap=config.output_soft_cap,
        )
        return CausalTransformer(
            config, stack, output, reader.dtype, reader.weight_dtype, reader.device
        )

    def _tables(self) -> tuple[Tensor | Quantised, Tensor | Quantised]:
        """Return the tables of tokens and of outputs, which are one object where they are equal."""
        config, held = self.config, [name for name in (TOKENS, OUTPUT) if name in self.checkpoint]
        names = [TOKENS, OUTPUT]
        if config.ties_embeddings and len(held) < 2:
            names = [self.checkpoint.first(names)]
        tables = [
            self.reader.matrix([name], config.vocab_size, config.hidden_size) for name in names
        ]
        # transformers, too, does not tie what differs
        if config.ties_embeddings and is_equal(tables[0], tables[-1]):
            return tables[0], tables[0]
        return tables[0], tables[-1]

    def _layer(self, i: int) -> CausalLayer:
        config, prefix = self.config, f"layers.{i}."
        d, size, family = config.hidden_size, config.head_size, config.family
        heads, key_heads = config.num_heads * size, config.num_key_heads * size
        inner_norm = "pre_feedforward_layernorm" if family.is_gemma else "post_attention_layernorm"

        def gemma_norm(name: str) -> RMSNorm | None:
            return self._norm(f"{prefix}{name}", d) if family.is_gemma else None

        def head_norm(name: str) -> RMSNorm | None:
            return self._norm(f"{prefix}self_attn.{name}", size) if family.has_head_norms else None

        def linear(
            names: Sequence[str], rows: Sequence[int], columns: int, has_bias: bool
        ) -> Linear:
            return self._linear([prefix + name for name in names], rows, columns, has_bias)

        has_inner_bias, gates = config.has_inner_bias, ["mlp.gate_proj", "mlp.up_proj"]
        return CausalLayer(
            self_norm=self._norm(f"{prefix}input_layernorm", d),
            qkv=linear(
                [f"self_attn.{part}_proj" for part in "qkv"],
                [heads, key_heads, key_heads],
                d,
                config.has_qkv_bias,
            ),
            query_norm=head_norm("q_norm"),
            key_norm=head_norm("k_norm"),
            self_out=linear(["self_attn.o_proj"], [d], heads, config.has_out_bias),
            after_self_norm=gemma_norm("post_attention_layernorm"),
            inner_norm=self._norm(prefix + inner_norm, d),
            gate_up=linear(gates, [config.inner_size] * 2, d, has_inner_bias),
            inner_out=linear(["mlp.down_proj"], [d], config.inner_size, has_inner_bias),
            after_inner_norm=gemma_norm("post_feedforward_layernorm"),
            window=config.windows[i],
            rotary=config.rotary[i],
        )

    def _norm(self, name: str, size: int) -> RMSNorm:
        reader = self.reader
        # norms are computed in float32 at least, and 1 + weight is no bfloat16
        dtype = torch.float64 if reader.dtype == torch.float64 else torch.float32
        weight = reader.taken(f"{name}.weight", dtype, size)
        if self.config.family.is_gemma:
            weight = weight + 1
        return RMSNorm(weight, self.config.epsilon, is_packed=reader.is_packed)

    def _linear(
        self, names: Sequence[str], rows: Sequence[int], columns: int, has_bias: bool
    ) -> Linear:
        """Join several linear layers into one, with their outputs one after another."""
        weight = self.reader.matrix([f"{name}.weight" for name in names], rows, columns)
        if not has_bias:
            return self.reader.linear(weight, None)
        parts = [
            self.reader.vector(f"{name}.bias", num) for name, num in zip(names, rows, strict=True)
        ]
        return self.reader.linear(weight, torch.cat(parts))
