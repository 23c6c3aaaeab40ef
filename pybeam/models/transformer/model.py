"""An encoder-decoder transformer: its weights, a decode call of it, and its attention over given outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.backends import Backend
from pybeam.backends.transfer import all_to_device, to_device
from pybeam.contracts import NewNodes
from pybeam.kvcache.pools import KeyValuePool, SourceCells, cells_of_pages
from pybeam.models.base import MAX_ENCODER_TOKENS, Alignment, InProcess, Session
from pybeam.models.cells import Cells
from pybeam.models.linear import Linear, PackedLinear
from pybeam.models.residual import add_and_norm
from pybeam.models.rows import Rows
from pybeam.models.transformer.attention import cross_attention
from pybeam.models.transformer.config import TransformerConfig
from pybeam.models.transformer.fused import FusedStack, fused
from pybeam.models.transformer.layers import AnyNorm, DecoderLayer, EncoderLayer, Layer, Stack
from pybeam.models.transformer.sources import SharedFeatures, TextSources


class Weights(NamedTuple):
    """The parts of a transformer."""

    config: TransformerConfig
    encoder: Stack[EncoderLayer]
    decoder: Stack[DecoderLayer]
    cross_key_value: Linear  # [layers * 2 * d, d], of all decoder layers at once
    output: Linear  # [V, d]
    dtype: torch.dtype  # dtype of activations, keys and values, and logits
    weight_dtype: torch.dtype  # dtype of matrices and token tables
    device: torch.device


class Transformer(InProcess, TextSources):
    """M2M100, NLLB, mBART, BART, Marian, FSMT, or T5 and its kin; made by `pybeam.load_model`.

    A source is a sequence of token ids, used as it is. Every position counts, whatever the token:
    a padding token inside a hypothesis is a token like any other.
    """

    can_capture = True
    has_attention = True

    def __init__(self, weights: Weights) -> None:
        self.config = config = weights.config
        self.encoder, self.decoder = weights.encoder, weights.decoder
        self.cross_key_value, self.output = weights.cross_key_value, weights.output
        self.dtype, self.weight_dtype = weights.dtype, weights.weight_dtype
        self.device = weights.device
        self.cross_cache_dtype = weights.dtype  # dtype of keys and values of encoder states
        self.vocab_size = config.vocab_size
        self.start_id, self.eos_id = config.start_id, config.eos_id
        self.other_eos_ids = config.other_eos_ids
        self.pad_id = config.pad_id
        self.max_positions = config.max_positions
        self.max_source_positions = config.max_source_positions

    def __repr__(self) -> str:
        config = self.config
        weights = "" if self.weight_dtype == self.dtype else f", {self.weight_dtype} weights"
        if self.cross_cache_dtype != self.dtype:
            weights += f", {self.cross_cache_dtype} cross cache"
        return (
            f"{type(self).__name__}({config.model_type}, {config.num_encoder_layers}+"
            f"{config.num_decoder_layers} layers, d={config.hidden_size}, V={self.vocab_size}, "
            f"{self.dtype}{weights}, {self.device})"
        )

    def session(self, backend: Backend) -> TransformerSession:
        """Make a fresh session that computes with this backend module."""
        return TransformerSession(self.with_backend(backend), backend)

    def with_backend(self, backend: Backend) -> Self:
        """Return a model with the same weights, computed by this backend module."""
        model = copy.copy(self)
        model.encoder = self.encoder.with_backend(backend)
        model.decoder = self.decoder.with_backend(backend)
        model.cross_key_value = self.cross_key_value.with_backend(backend)
        model.output = self.output.with_backend(backend)
        return model

    def with_cross_cache(self, dtype: torch.dtype) -> Self:
        """Return a model with the same weights that keeps keys and values of encoder states in this dtype.

        Raises:
            ValueError: it is neither `self.dtype` nor, for float32 on a CPU, bfloat16.
        """
        can_round = self.dtype == torch.float32 and self.device.type == "cpu"
        if dtype != self.dtype and not (can_round and dtype == torch.bfloat16):
            problem = (
                f"must be 'auto' for a model that computes in {self.dtype} on {self.device}, but is {dtype}; "
                "bfloat16 is for models that compute in float32 on a CPU"
            )
            raise ArgumentError("cross_cache_dtype", problem)
        model = copy.copy(self)
        model.cross_cache_dtype = dtype
        return model

    def check_alignment(self, alignment: Alignment) -> None:
        """Raise ValueError if there is no such layer or head."""
        num_layers, num_heads = len(self.decoder.layers), self.decoder.num_heads
        if not -num_layers <= alignment.layer < num_layers:
            raise ValueError(
                f"`layer` must be {-num_layers} to {num_layers - 1} for a decoder of {num_layers} layers, "
                f"but is {alignment.layer}"
            )
        highest = max(alignment.heads or [0])
        if highest >= num_heads:
            raise ValueError(f"`heads` must be 0 to {num_heads - 1}, but one is {highest}")

    def embed_sources(self, sources: Sequence[Tensor], position: Tensor) -> Tensor:
        """Return the inputs [n, d] of the encoder's layers for checked sources, one after another.

        `position` [n] counts from 0 in each; n is the sum of their `source_length`.
        """
        return self.encoder.embed(self.tokens_of(sources), position)

    def encoder_inputs(
        self, sources: Sequence[Tensor], position: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return what a fused encoder reads: tokens and positions, or `embed_sources`."""
        return self.tokens_of(sources), position

    def tokens_of(self, sources: Sequence[Tensor]) -> Tensor:
        """Return the tokens [n] of checked sources, one after another."""
        return to_device(torch.cat(list(sources)), torch.int32, self.device)


class TransformerSession(Session):
    """Keys and values of the decoder's own tokens and of the encoder states, each kept once."""

    can_read = True

    def __init__(self, model: Transformer, backend: Backend) -> None:
        self.model, self._backend = model, backend
        decoder, config = model.decoder, model.config
        self._is_pre_norm = is_pre_norm = config.family.is_pre_norm
        self._fused_encoder = fused(backend, model.encoder, None, is_pre_norm)
        self._fused_decoder = fused(backend, decoder, model.output, is_pre_norm)
        self._head_size = decoder.head_size
        pool = (len(decoder.layers), decoder.num_heads, self._head_size)
        self._own = KeyValuePool(*pool, model.dtype, model.device)
        self._cross = KeyValuePool(*pool, model.cross_cache_dtype, model.device)
        self._source = SourceCells(model.device)
        # the position of the token in each cell, where positions are relative
        self._cell_position = torch.empty(0, dtype=torch.int32, device=model.device)
        # kept between steps, because on a CPU fresh memory of this size costs a page fault every few rows
        self._logits = torch.empty(0, model.vocab_size, dtype=model.dtype, device=model.device)

    @cached_property
    def _fused_states(self) -> FusedStack:
        """The decoder without its output layer."""
        states = fused(self._backend, self.model.decoder, None, self._is_pre_norm)
        assert states is not None, "there is one with the output layer"
        return states

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._own.grow(num_cells)
        self._source.reserve(num_slots)
        old = self._cell_position
        if self.model.decoder.relative and old.numel() < num_cells:
            self._cell_position = old.new_zeros(num_cells)
            self._cell_position[: old.numel()] = old

    def encode(
        self, sources: Sequence[Tensor], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        lengths = self._lengths(sources)
        # for all at once, because a pool that grows copies what it holds
        self._source.make_room(self._cross, lengths)
        for part in _chunks(lengths, MAX_ENCODER_TOKENS):
            self._encode(sources[part], slots[part])

    def release(self, slots: Sequence[int]) -> None:
        self._cross.forget_pages(self._source.release(slots))

    def buffers(self) -> Sequence[Tensor]:
        pools = self._own.first, self._cross.first, self._cell_position
        return *pools, self._source.cell, self._source.length

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        of_source = cells_of_pages(source_length) * self._cross.cell_bytes
        return num_cells * self._own.cell_bytes + of_source

    def step(self, rows: Rows) -> Tensor:
        model, own = self.model, Cells.of_tree(rows)
        self._own.forget_unseen(rows.tree, rows.cell, self._cell_position)
        out = None if rows.token.is_cuda else self._logits_of(rows.token.shape[0])  # [R, V]
        if self._fused_decoder is None:
            return model.output(self._states_of(rows, own), out)  # [R, V]
        assert out is not None and isinstance(model.output, PackedLinear), "others are not fused"
        if rows.wanted is None:
            return self._run(self._fused_decoder, out, rows, own)
        return model.output.some(self._states_of(rows, own), rows.wanted, out)

    def read(self, rows: Rows) -> None:
        self._own.forget_unseen(rows.tree, rows.cell, self._cell_position)
        self._states_of(rows, Cells.of_path(rows))

    def _run(self, stack: FusedStack, out: Tensor, rows: Rows, own: Cells) -> Tensor:
        """Send rows through a fused decoder. Returns `out`, its logits or its states."""
        if self.model.decoder.relative:
            self._backend.scatter_rows(self._cell_position, rows.cell, rows.position)
        inputs, cross = (rows.token, rows.position), Cells.of_encoder(rows, self._source)
        pools, cells = (self._own.memory, self._cross.memory), (own, cross)
        return stack.decode(out, inputs, pools, rows.cell, cells, self._cell_position)

    def _states_of(self, rows: Rows, own: Cells) -> Tensor:
        """Return what the output layer reads of rows [R, d], which see `own` cells of the tree."""
        decoder, pool = self.model.decoder, self._own
        if self._fused_decoder is not None:
            x = torch.empty(rows.token.shape[0], self.model.config.hidden_size)
            return self._run(self._fused_states, x, rows, own)
        cross, heads, size = (
            Cells.of_encoder(rows, self._source),
            decoder.num_heads,
            self._head_size,
        )
        places = rows.position, self._cell_position
        if decoder.relative:
            self._backend.scatter_rows(self._cell_position, rows.cell, rows.position)
        x = decoder.embed(rows.token, rows.position)  # [R, d]
        y = self.first(decoder, x)
        for i, (layer, next_norm) in enumerate(self.seams(decoder)):
            qkv = layer.qkv(y).view(-1, 3, heads, size)  # [R, 3, H, D]
            distances = decoder.relative[i].between(*places) if decoder.relative else None
            query, key, value = qkv.unbind(1)
            new = NewNodes(key, value, rows.cell)
            given = query, pool.key[i], pool.value[i], decoder.scale, distances, new
            y = own.attend(self._backend, *given)
            norms = layer.self_norm, layer.cross_norm
            x, y = self.joined(layer.self_out, norms, x, y.flatten(1))
            y = layer.cross_query(y).view(-1, heads, size)
            key, value = self._cross.key[i], self._cross.value[i]
            y = cross.attend(self._backend, y, key, value, decoder.scale)  # [R, H, D]
            norms = layer.cross_norm, layer.inner_norm
            x, y = self.joined(layer.cross_out, norms, x, y.flatten(1))
            x, y = self.joined(layer.inner_out, (layer.inner_norm, next_norm), x, layer.inner(y))
        if decoder.final_norm is not None and not self._is_pre_norm:
            y = decoder.final_norm(y)
        return y

    def _logits_of(self, num_rows: int) -> Tensor:
        """Return memory [R, V] for the logits of so many rows."""
        if self._logits.shape[0] < num_rows:
            self._logits = self._logits.new_empty(num_rows, self.model.vocab_size)
        return self._logits[:num_rows]

    def _encode(self, sources: Sequence[Any], slots: Sequence[int]) -> None:
        """Encode these sources as one ragged batch; keep every decoder layer's keys and values."""
        lengths = self._lengths(sources)
        cell = self._source.allocate(slots, lengths)  # [n] int32, n = sum(lengths)
        if not cell.numel():
            return
        key_value = self.cross_keys_and_values(self.states(sources))
        for i, pool in enumerate(self._cross.both):
            self._backend.scatter_rows(pool, cell, key_value[:, i])

    def cross_keys_and_values(self, state: Tensor) -> Tensor:
        """Return keys and values [n, layers, 2, H, D] of encoder states [n, d], as they are kept."""
        model, decoder = self.model, self.model.decoder
        key_value = model.cross_key_value(state)  # [n, layers * 2 * d]
        shape = state.shape[0], len(decoder.layers), 2, decoder.num_heads, self._head_size
        # to nearest, ties to even
        return key_value.view(shape).to(model.cross_cache_dtype)

    def states(self, sources: Sequence[Any]) -> Tensor:
        """Return `encoder_states`; those of `SharedFeatures` are computed once."""
        if not any(isinstance(source, SharedFeatures) for source in sources):
            return self.encoder_states(sources)
        shared = [SharedFeatures.of(source) for source in sources]
        missing = list({id(one): one for one in shared if one.states is None}.values())
        if missing:
            states = self.encoder_states([one.features for one in missing])
            for one, own in zip(missing, states.split(self._lengths(missing)), strict=True):
                one.states = own.clone()
        return torch.cat([one.states for one in shared if one.states is not None])

    def encoder_states(self, sources: Sequence[Tensor]) -> Tensor:
        """Return hidden states [n, d] of these sources, one after another, without padding."""
        model, encoder, device = self.model, self.model.encoder, self.model.device
        lengths = np.array(self._lengths(sources))  # [A]
        offsets = np.concatenate(([0], lengths.cumsum()))  # [A + 1]
        # the rows of each source are its cells
        places = offsets[:-1, None] + np.arange(lengths.max())  # [A, U]
        positions = np.arange(offsets[-1]) - offsets[:-1].repeat(lengths)  # [n]
        host = offsets, np.arange(len(sources)), places, lengths, positions
        offset, slot, cell, length, position = all_to_device(host, device)
        cells = Cells(offset, slot, cell, length)
        if self._fused_encoder is not None:
            return self._fused_encoder.encode(model.encoder_inputs(sources, position), cells)
        x = model.embed_sources(sources, position)  # [n, d]
        y, shape = self.first(encoder, x), (-1, 3, encoder.num_heads, encoder.head_size)
        for i, (layer, next_norm) in enumerate(self.seams(encoder)):
            query, key, value = layer.qkv(y).view(shape).unbind(1)
            # rows are cells
            relative = encoder.relative
            distances = relative[i].between(position, position) if relative else None
            y = cells.attend(self._backend, query, key, value, encoder.scale, distances)
            norms = layer.self_norm, layer.inner_norm
            x, y = self.joined(layer.self_out, norms, x, y.flatten(1))
            x, y = self.joined(layer.inner_out, (layer.inner_norm, next_norm), x, layer.inner(y))
        if encoder.final_norm is not None and not self._is_pre_norm:
            y = encoder.final_norm(y)
        return y

    def attention(
        self,
        sources: Sequence[Tensor],
        hypotheses: Sequence[Sequence[Sequence[int]]],
        alignment: Alignment,
    ) -> list[list[Tensor]]:
        found = []
        for part in _chunks(self._lengths(sources), MAX_ENCODER_TOKENS):
            states = self.states(sources[part])  # [n, d]
            lengths = self._lengths(sources[part])
            for state, own in zip(states.split(lengths), hypotheses[part], strict=True):
                found.append(cross_attention(self, state, own, alignment))
        return found

    def _lengths(self, sources: Sequence[Any]) -> list[int]:
        return [self.model.source_length(source) for source in sources]

    def inner(self, layer: EncoderLayer, x: Tensor) -> Tensor:
        y = layer.inner(self.before(layer.inner_norm, x))  # [n, inner_size]
        return self.after(layer.inner_norm, layer.inner_out.add(x, y))

    def seams(self, stack: Stack[Layer]) -> Iterator[tuple[Layer, AnyNorm | None]]:
        """Yield every layer with the norm through which its states are read, if norms come first."""
        norms = [layer.self_norm for layer in stack.layers[1:]]
        return zip(stack.layers, [*norms, stack.final_norm], strict=bool(stack.layers))

    def first(self, stack: Stack[Any], x: Tensor) -> Tensor:
        """Return what is read first of embeddings x [n, d]: by a layer, or by the output if there is none."""
        norm = stack.layers[0].self_norm if stack.layers else stack.final_norm
        return x if norm is None else self.before(norm, x)

    def joined(
        self, linear: Linear, norms: tuple[AnyNorm, AnyNorm | None], x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add a sublayer's result ``linear(y)`` to the states x. Returns them, and what the next one reads.

        `norms` are its own and the next sublayer's.
        """
        norm = norms[self._is_pre_norm]
        if norm is None:
            x = linear.add(x, y)
            return x, x
        x, y = add_and_norm(self._backend, linear, norm, x, y)
        return (x, y) if self._is_pre_norm else (y, y)

    def before(self, norm: AnyNorm, x: Tensor) -> Tensor:
        return norm(x) if self._is_pre_norm else x

    def after(self, norm: AnyNorm, x: Tensor) -> Tensor:
        return x if self._is_pre_norm else norm(x)


def _chunks(lengths: Sequence[int], max_sum: int) -> Iterator[slice]:
    """Yield slices of neighbours whose lengths sum to at most `max_sum`, or of one longer source."""
    start, total = 0, 0
    for i, length in enumerate(lengths):
        if i > start and total + length > max_sum:
            yield slice(start, i)
            start, total = i, 0
        total += length
    if start < len(lengths):
        yield slice(start, len(lengths))
