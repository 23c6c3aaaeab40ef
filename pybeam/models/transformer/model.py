"""An encoder-decoder transformer: its weights, a decode call of it, and its attention over given outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.arrays import resized
from pybeam.backends.transfer import all_to_device, to_device
from pybeam.kvcache.pools import KeyValuePool, SourceCells, cells_of_pages
from pybeam.models.base import MAX_ENCODER_TOKENS, Alignment
from pybeam.models.cells import Cells
from pybeam.models.linear import Linear
from pybeam.models.rows import Rows
from pybeam.models.transformer.built_in import BuiltIn
from pybeam.models.transformer.config import TransformerConfig
from pybeam.models.transformer.layers import Stack
from pybeam.models.transformer.running import Inputs, Seen, StackRunner, StackSession
from pybeam.models.transformer.sources import SharedFeatures, TextSources

# positions that an encoder reads at once on a CPU: more are not faster, and what lies between its layers
# would not stay in a cache that engines share
CPU_ENCODER_TOKENS = 512


class Weights(NamedTuple):
    """The parts of a transformer."""

    config: TransformerConfig
    encoder: Stack
    decoder: Stack
    cross_key_value: Linear  # [layers * 2 * d, d], of all decoder layers at once
    output: Linear  # [V, d]
    dtype: torch.dtype  # dtype of activations and logits
    weight_dtype: torch.dtype  # dtype of matrices and token tables
    device: torch.device


class Transformer(BuiltIn, TextSources):
    """M2M100, NLLB, mBART, BART, Pegasus, Marian, FSMT, or T5 and its kin; made by `pybeam.load_model`.

    A source is a sequence of token ids, used as it is. Every position counts, whatever the token. Padding
    inside a hypothesis has the position that `pybeam.models.transformer.positions.with_padding` gives it.
    """

    can_capture = True
    has_attention = True

    def __init__(self, weights: Weights) -> None:
        self.config = config = weights.config
        self.encoder, self.decoder = weights.encoder, weights.decoder
        self.cross_key_value, self.output = weights.cross_key_value, weights.output
        self.dtype, self.weight_dtype = weights.dtype, weights.weight_dtype
        self.device = weights.device
        self.vocab_size = config.vocab_size
        self.start_id, self.eos_id = config.start_id, config.eos_id
        self.other_eos_ids = config.other_eos_ids
        self.pad_id = config.pad_id
        self.max_positions = config.max_positions
        self.max_source_positions = config.max_source_positions

    def __repr__(self) -> str:
        config = self.config
        return (
            f"{type(self).__name__}({config.model_type}, {config.num_encoder_layers}+"
            f"{config.num_decoder_layers} layers, d={config.hidden_size}, V={self.vocab_size}, "
            f"{self._dtypes}, {self.device})"
        )

    def session(self, backend: Backend) -> TransformerSession:
        """Make a fresh session that computes with this backend module."""
        return TransformerSession(self.with_backend(backend), backend)

    def check_alignment(self, alignment: Alignment) -> None:
        """Raise ValueError if there is no attention, or no such layer or head."""
        super().check_alignment(alignment)
        num_layers, num_heads = len(self.decoder.layers), self.decoder.num_heads
        if not -num_layers <= alignment.layer < num_layers:
            raise ValueError(
                f"`layer` must be {-num_layers} to {num_layers - 1} for a decoder of {num_layers} layers, "
                f"but is {alignment.layer}"
            )
        highest = max(alignment.heads or [0])
        if highest >= num_heads:
            raise ValueError(f"`heads` must be 0 to {num_heads - 1}, but one is {highest}")

    def encoder_inputs(self, sources: Sequence[Tensor], position: Tensor) -> Inputs:
        """Return what the encoder reads of checked sources, one after another.

        `position` [n] counts from 0 in each; n is the sum of their `source_length`.
        """
        return to_device(torch.cat(list(sources)), torch.int32, self.device), position


class TransformerSession(StackSession):
    """Keys and values of the decoder's own tokens and of the encoder states, each kept once."""

    can_read = True

    def __init__(self, model: Transformer, backend: Backend) -> None:
        self.model, self.backend = model, backend
        decoder = model.decoder
        self._encoder = StackRunner(backend, model.encoder, model.cross_key_value)
        self._decoder = StackRunner(backend, decoder, model.output)
        has_own_step = type(self).step is not StackSession.step
        self.chooses = self._decoder.shortcut is not None and not has_own_step
        heads = len(decoder.layers), decoder.num_heads, decoder.head_size
        pool = *heads, model.cache_dtype, model.device
        self._own, self._cross = KeyValuePool(*pool), KeyValuePool(*pool)
        self._source = SourceCells(model.device)
        self._most_tokens = CPU_ENCODER_TOKENS if model.device.type == "cpu" else MAX_ENCODER_TOKENS
        self._has_distances = decoder.has_distances
        # the position of the token in each cell, where positions are relative
        self._cell_position = torch.empty(0, dtype=torch.int32, device=model.device)

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._own.grow(num_cells)
        self._source.reserve(num_slots)
        if self._has_distances:
            self._cell_position = resized(self._cell_position, (num_cells,))

    def encode(
        self, sources: Sequence[Tensor], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        lengths = self._lengths(sources)
        # for all at once, because a pool that grows copies what it holds
        self._source.make_room(self._cross, lengths)
        for part in _chunks(lengths, self._most_tokens):
            self._encode(sources[part], slots[part])

    def release(self, slots: Sequence[int]) -> None:
        self._cross.forget_pages(self._source.release(slots))

    def buffers(self) -> Sequence[Tensor]:
        pools = self._own.both[0], self._cross.both[0], self._cell_position
        return *pools, self._source.cell, self._source.length

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        return (num_cells + cells_of_pages(source_length)) * self._own.cell_bytes

    def read(self, rows: Rows) -> None:
        self._decoder.states(*self._seen(rows, Cells.of_path(rows)))

    def _seen(self, rows: Rows, own: Cells) -> tuple[Inputs, Seen, Seen]:
        self._own.forget_unseen(rows.tree, rows.cell, self._cell_position)
        seen = Seen(own, self._own, rows.cell)
        if self._has_distances:
            # a program does it itself
            if self._decoder.program is None:
                self.backend.scatter_rows(self._cell_position, rows.cell, rows.position)
            seen = seen._replace(position=rows.position, cell_position=self._cell_position)
        cross = Seen(Cells.of_encoder(rows, self._source), self._cross)
        return (rows.token, rows.position), seen, cross

    def _encode(self, sources: Sequence[Any], slots: Sequence[int]) -> None:
        """Encode these sources as one ragged batch; keep every decoder layer's keys and values."""
        if self.replay is not None:
            # only a GPU has graphs
            from pybeam.models.transformer.captured import encode

            given = self.model, self._source, sources, slots
            sources, slots = encode(*given, self._encoded, self.replay)
            if not sources:
                return
        cell = self._source.allocate(slots, self._lengths(sources))  # [n] int32
        if not cell.numel():
            return
        # recordings may share states
        if self._encoder.program is not None and not self.model.takes_features:
            inputs, seen = self._encoder_given(sources)
            self._encoder.keep(inputs, seen._replace(cell=cell), self._cross)
            return
        self._keep(self.states(sources), cell)

    def _encoded(self, inputs: Inputs, position: Tensor, cells: Cells, kept: Tensor) -> Tensor:
        """Return the states of positions [n], whose keys and values go to these cells [n]."""
        return self._keep(self._encoder.states(inputs, self._seen_in_source(position, cells)), kept)

    def _keep(self, state: Tensor, cell: Tensor) -> Tensor:
        """Keep every decoder layer's keys and values of these states [n, d] in these cells [n]."""
        key_value = self.cross_keys_and_values(state)
        for i, pool in enumerate(self._cross.both):
            self.backend.scatter_rows(pool, cell, key_value[:, i])
        return state

    def cross_keys_and_values(self, state: Tensor) -> Tensor:
        """Return keys and values [n, layers, 2, H, D] of encoder states [n, d], as they are kept."""
        model, decoder = self.model, self.model.decoder
        shape = state.shape[0], len(decoder.layers), 2, decoder.num_heads, decoder.head_size
        # to nearest, ties to even
        return model.cross_key_value(state).view(shape).to(model.cache_dtype)

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
        return self._encoder.states(*self._encoder_given(sources))

    def _encoder_given(self, sources: Sequence[Tensor]) -> tuple[Inputs, Seen]:
        """Return what the encoder reads, and what its rows see: those of their own source."""
        model, device = self.model, self.model.device
        lengths = np.array(self._lengths(sources))  # [A]
        offsets = np.concatenate(([0], lengths.cumsum()))  # [A + 1]
        # the rows of each source are its cells
        places = offsets[:-1, None] + np.arange(lengths.max())  # [A, U]
        positions = np.arange(offsets[-1]) - offsets[:-1].repeat(lengths)  # [n]
        host = offsets, np.arange(len(sources)), places, lengths, positions
        offset, slot, cell, length, position = all_to_device(host, device)
        seen = self._seen_in_source(position, Cells(offset, slot, cell, length))
        return model.encoder_inputs(sources, position), seen

    def _seen_in_source(self, position: Tensor, cells: Cells) -> Seen:
        """Return what rows of an encoder see, which are cells."""
        if self.model.encoder.has_distances:
            return Seen(cells, position=position, cell_position=position)
        return Seen(cells)

    def attention(
        self,
        sources: Sequence[Tensor],
        hypotheses: Sequence[Sequence[Sequence[int]]],
        alignment: Alignment,
    ) -> list[list[Tensor]]:
        # few outputs are aligned
        from pybeam.models.transformer.attention import cross_attention

        found = []
        for part in _chunks(self._lengths(sources), self._most_tokens):
            states = self.states(sources[part])  # [n, d]
            lengths = self._lengths(sources[part])
            for state, own in zip(states.split(lengths), hypotheses[part], strict=True):
                found.append(cross_attention(self, state, own, alignment))
        return found

    def _lengths(self, sources: Sequence[Any]) -> list[int]:
        return [self.model.source_length(source) for source in sources]


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
