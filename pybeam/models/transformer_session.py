"""One decode call of a transformer: encoding without padding, steps over the token tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.base import Alignment, Rows, Session
from pybeam.models.cells import KeyValuePool, SourceCells, cells_of_pages
from pybeam.models.layers import EncoderLayer, Norm
from pybeam.models.teacher_forcing import cross_attention
from pybeam.transfer import to_device

if TYPE_CHECKING:
    from pybeam.models.transformer import Transformer

MAX_ENCODER_TOKENS = 4096


class TransformerSession(Session):
    """Keys and values of the decoder's own tokens and of the encoder states, each kept once."""

    def __init__(self, model: Transformer, backend) -> None:
        self.model, self._backend = model, backend
        decoder, config = model.decoder, model.config
        self._is_pre_norm = config.family.is_pre_norm
        self._head_size = config.hidden_size // decoder.num_heads
        self._scale = self._head_size**-0.5
        pool = (len(decoder.layers), decoder.num_heads, self._head_size, model.dtype, model.device)
        self._own = KeyValuePool(*pool)
        self._cross = KeyValuePool(*pool)
        self._source = SourceCells(model.device)
        # kept on a CPU, where fresh memory of this size costs a page fault every few rows
        self._logits = torch.empty(0, model.vocab_size, dtype=model.dtype, device=model.device)

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._own.grow(num_cells)
        self._source.reserve(num_slots)

    def encode(
        self, sources: Sequence[Tensor], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        for part in _chunks(self._lengths(sources), MAX_ENCODER_TOKENS):
            self._encode(sources[part], slots[part])

    def release(self, slots: Sequence[int]) -> None:
        self._source.release(slots)

    def buffers(self) -> Sequence[Tensor]:
        return self._own.memory, self._cross.memory, self._source.cell, self._source.length

    def most_bytes(self, num_cells: int, source_length: int) -> int:
        of_source = cells_of_pages(source_length) * self._cross.cell_bytes
        return num_cells * self._own.cell_bytes + of_source

    def step(self, rows: Rows) -> Tensor:
        model, decoder, own, cross = self.model, self.model.decoder, self._own, self._cross
        backend, tree, source, scale = self._backend, rows.tree, self._source, self._scale
        attention = backend.tree_attention
        heads, size = decoder.num_heads, self._head_size
        x = decoder.embed(rows.token, rows.position)  # [R, d]
        for i, layer in enumerate(decoder.layers):
            y = self.before(layer.self_norm, x)
            qkv = layer.qkv(y).view(-1, 3, heads, size)  # [R, 3, H, D]
            backend.scatter_rows(own.both[i], rows.cell, qkv[:, 1:])
            y = attention(
                qkv[:, 0],
                own.key[i],
                own.value[i],
                rows.offset,
                rows.slot,
                tree.live_cell,
                tree.num_live,
                tree.live_mask,
                rows.bit,
                scale,
            )  # [R, H, D]
            x = self.after(layer.self_norm, layer.self_out.add(x, y.flatten(1)))
            y = layer.cross_query(self.before(layer.cross_norm, x))  # [R, d]
            y = attention(
                y.view(-1, heads, size),
                cross.key[i],
                cross.value[i],
                rows.offset,
                rows.slot,
                source.cell,
                source.length,
                None,
                None,
                scale,
            )  # [R, H, D]
            x = self.after(layer.cross_norm, layer.cross_out.add(x, y.flatten(1)))
            x = self.inner(layer, x)
        if decoder.final_norm is not None:
            x = decoder.final_norm(x)
        if x.is_cuda:
            return model.output(x)  # [R, V]
        if self._logits.shape[0] < x.shape[0]:
            self._logits = x.new_empty(x.shape[0], model.vocab_size)
        return model.output(x, self._logits)  # [R, V]

    def _encode(self, sources: Sequence[Tensor], slots: Sequence[int]) -> None:
        """Encode these sources as one ragged batch; keep every decoder layer's keys and values."""
        model = self.model
        lengths = self._lengths(sources)
        cell = self._source.allocate(slots, lengths)  # [n] int32, n = sum(lengths)
        self._cross.grow(_doubled(self._cross.num_cells, self._source.num_cells))
        if not cell.numel():
            return
        state = self.encoder_states(sources)  # [n, d]
        key_value = model.cross_key_value(state)  # [n, layers * 2 * d]
        key_value = key_value.view(
            cell.numel(), len(model.decoder.layers), *self._cross.both[0].shape[1:]
        )
        for i, pool in enumerate(self._cross.both):
            self._backend.scatter_rows(pool, cell, key_value[:, i])

    def encoder_states(self, sources: Sequence[Tensor]) -> Tensor:
        """Hidden states [n, d] of these sources, packed one after another without padding."""
        model, encoder, device = self.model, self.model.encoder, self.model.device
        length = torch.tensor(self._lengths(sources), dtype=torch.int32)  # [A]
        offset = F.pad(length.cumsum(0, dtype=torch.int32), (1, 0))  # [A + 1]
        within = torch.arange(int(length.max()), dtype=torch.int32)
        cell = offset[:-1, None] + within  # [A, U], the rows of each source are its cells
        start = offset[:-1].repeat_interleave(length)  # [n]
        position = torch.arange(start.numel(), dtype=torch.int32) - start  # [n]
        slot = torch.arange(len(sources), dtype=torch.int32)
        length, offset, cell, position, slot = (
            to_device(tensor, tensor.dtype, device)
            for tensor in (length, offset, cell, position, slot)
        )
        x = model.embed_sources(sources, position)  # [n, d]
        size = x.shape[1] // encoder.num_heads
        for layer in encoder.layers:
            y = self.before(layer.self_norm, x)
            query, key, value = layer.qkv(y).view(-1, 3, encoder.num_heads, size).unbind(1)
            y = self._backend.tree_attention(
                query, key, value, offset, slot, cell, length, None, None, size**-0.5
            )  # [n, H, D]
            x = self.after(layer.self_norm, layer.self_out.add(x, y.flatten(1)))
            x = self.inner(layer, x)
        return x if encoder.final_norm is None else encoder.final_norm(x)

    def attention(
        self,
        sources: Sequence[Tensor],
        hypotheses: Sequence[Sequence[Sequence[int]]],
        alignment: Alignment,
    ) -> list[list[Tensor]]:
        found = []
        for part in _chunks(self._lengths(sources), MAX_ENCODER_TOKENS):
            states = self.encoder_states(sources[part])  # [n, d]
            lengths = self._lengths(sources[part])
            for state, own in zip(states.split(lengths), hypotheses[part], strict=True):
                found.append(cross_attention(self, state, own, alignment))
        return found

    def _lengths(self, sources: Sequence[Tensor]) -> list[int]:
        return [self.model.source_length(source) for source in sources]

    def inner(self, layer: EncoderLayer, x: Tensor) -> Tensor:
        y = layer.inner(self.before(layer.inner_norm, x))  # [n, inner_size]
        return self.after(layer.inner_norm, layer.inner_out.add(x, y))

    def before(self, norm: Norm, x: Tensor) -> Tensor:
        return norm(x) if self._is_pre_norm else x

    def after(self, norm: Norm, x: Tensor) -> Tensor:
        return x if self._is_pre_norm else norm(x)


def _chunks(lengths: Sequence[int], most: int) -> Iterator[slice]:
    """Slices of neighbours whose lengths sum to at most `most`, or of one that is longer."""
    start, total = 0, 0
    for i, length in enumerate(lengths):
        if i > start and total + length > most:
            yield slice(start, i)
            start, total = i, 0
        total += length
    if start < len(lengths):
        yield slice(start, len(lengths))


def _doubled(old: int, needed: int) -> int:
    return old if needed <= old else max(2 * old, needed)
