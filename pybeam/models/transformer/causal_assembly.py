"""Build a decoder-only transformer from its checkpoint."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pybeam.backends.packing import Quantised
from pybeam.models.checkpoint import Checkpoint
from pybeam.models.linear import PackedLinear
from pybeam.models.transformer.assembly import is_equal, nowhere
from pybeam.models.transformer.causal import CausalTransformer
from pybeam.models.transformer.causal_config import CausalConfig
from pybeam.models.transformer.layers import Stack, TokenTable
from pybeam.models.transformer.relative import RelativeBias
from pybeam.models.transformer.rotary import RotaryTable
from pybeam.models.transformer.stacks import StackReader
from pybeam.models.weights import WeightReader


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
        family = config.family
        tables = family.tokens, family.output
        # one name, where the file gives two to one tensor
        self.names = [checkpoint.first([f"{table}.weight"]) for table in tables]
        # few inputs of a language model are many times as large as the others of their row
        given = checkpoint, device, dtype, checkpoint.first(self.names)
        self.reader = WeightReader(*given, keeps_large=True)

    def model(self) -> CausalTransformer:
        config, reader = self.config, self.reader
        family, facts = config.family, config.stack
        tokens, table = self._tables()
        bias = None
        if family.has_output_bias:
            bias = reader.vector(f"{family.output}.bias", config.vocab_size)
        output = reader.linear(table, bias)
        token_table: TokenTable = reader.table(tokens)
        if tokens is table and isinstance(output, PackedLinear) and output.shares_weights:
            # it is looked up in, instead of a second copy
            token_table = output
        stack_reader = StackReader(reader, facts)
        norm = family.embedding_norm
        stack = Stack(
            token_table=token_table,
            position_table=self._positions(),
            layers=stack_reader.layers(),
            num_heads=facts.num_heads,
            num_key_heads=facts.num_key_heads,
            head_size=facts.head_size,
            scale=config.scale,
            embedding_scale=config.embedding_scale,
            embedding_norm=None if norm is None else stack_reader.norm(norm),
            final_norm=stack_reader.norm(family.final_norm),
            is_parallel=config.is_parallel,
            soft_cap=config.soft_cap,
            output_soft_cap=config.output_soft_cap,
            rotary=tuple(
                RotaryTable(one, config.max_positions, reader.device) for one in config.frequencies
            ),
        )
        if family.has_slopes:
            slopes = RelativeBias.of_slopes(facts.num_heads, config.max_positions, reader.device)
            layers = tuple(replace(layer, relative=slopes) for layer in stack.layers)
            stack = replace(stack, layers=layers)
        return CausalTransformer(
            config, stack, output, reader.dtype, reader.weight_dtype, reader.device
        )

    def _positions(self) -> Tensor:
        """Return the table of positions that are added to tokens [positions, d], which may be empty."""
        config, name = self.config, self.config.family.position_table
        size, offset = config.stack.hidden_size, config.family.position_offset
        if name is None:
            return nowhere(self.reader, size)
        num = offset + config.max_positions
        return self.reader.vector(f"{name}.weight", num, size)[offset:]

    def _tables(self) -> tuple[Tensor | Quantised, Tensor | Quantised]:
        """Return the tables of tokens and of outputs, which are one object where they are equal."""
        config, names = self.config, self.names
        held = [name for name in names if name in self.checkpoint]
        if config.ties_embeddings and len(set(held)) < 2:
            names = [self.checkpoint.first(names)]
        size = config.vocab_size, config.stack.hidden_size
        tables = [self.reader.matrix([name], *size) for name in names]
        # transformers, too, does not tie what differs
        if config.ties_embeddings and is_equal(tables[0], tables[-1]):
            return tables[0], tables[0]
        return tables[0], tables[-1]
