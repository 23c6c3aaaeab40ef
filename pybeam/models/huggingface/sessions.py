"""Decode calls of a wrapped model over the token tree: no key or value moves on a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.arrays import resized
from pybeam.backends.transfer import to_device
from pybeam.kvcache.pools import KeyValuePool, SourceCells, cells_of_pages
from pybeam.models.base import Session
from pybeam.models.cells import Cells
from pybeam.models.huggingface.attention import Step, TreeCache, attending, kept, with_cross
from pybeam.models.huggingface.encoding import EncoderOutput, batches, encoded, padded
from pybeam.models.huggingface.model import HuggingFaceModel
from pybeam.models.huggingface.positions import PositionTable, biases_upto
from pybeam.models.prompts import PromptPool, Prompts
from pybeam.models.rows import Rows


def _places(lengths: Sequence[int], longest: int, device: torch.device) -> Tensor:
    """Return the places [n] of what is no padding in lines of these lengths, each padded to `longest`."""
    places = [torch.arange(n) + i * longest for i, n in enumerate(lengths)]
    return to_device(torch.cat(places), torch.long, device)


def _rows_of(states: Tensor, place: Tensor) -> Tensor:
    """Turn keys or values [A, G, E, D] of one layer into rows [n, G, D], those at these places [n]."""
    return states.transpose(1, 2).flatten(0, 1).index_select(0, place)


class EncoderDecoderSession(Session):
    """Keys and values of the decoder's tokens and of the encoder's states, each kept once."""

    def __init__(self, model: HuggingFaceModel, backend: Backend) -> None:
        self._model, self._backend, memory = model, backend, model.memory
        assert memory.own is not None and memory.cross is not None
        self._own = KeyValuePool(*memory.own, model.device)
        self._cross = KeyValuePool(*memory.cross, model.device)
        self._source = SourceCells(model.device)
        own, cross = TreeCache(memory.own.num_layers), TreeCache(memory.cross.num_layers)
        self._caches = own, cross
        self._cache = with_cross(own, cross, is_known=True)
        # a decoder only asks whether there are encoder states; it takes their keys and values from the cache
        self._states: EncoderOutput | None = None
        # the position of the token in each cell, where biases and windows ask for it
        self._position = torch.zeros(0, 1, dtype=torch.int32, device=model.device)
        self._needs_positions = memory.biases is not None or memory.is_windowed
        self.windows: set[int] = set()  # windows that the model has asked for so far
        self._positions = None
        if memory.looks_up:
            assert model.max_positions is not None
            with model.lock:
                self._positions = PositionTable(model.decoder, model.max_positions, model.pad_id)

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._own.grow(num_cells)
        self._source.reserve(num_slots)
        if self._needs_positions:
            self._position = resized(self._position, (num_cells, 1))

    def release(self, slots: Sequence[int]) -> None:
        self._cross.forget_pages(self._source.release(slots))

    def buffers(self) -> Sequence[Tensor]:
        source = self._source.cell, self._source.length
        return self._own.both[0], self._cross.both[0], *source, self._position

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        of_source = cells_of_pages(source_length) * self._cross.cell_bytes
        return num_cells * self._own.cell_bytes + of_source

    def encode(self, sources: Sequence[Any], indices: Sequence[int], slots: Sequence[int]) -> None:
        model, cross = self._model, self._cross
        with model.lock:
            for index, states, lengths in encoded(model, sources):
                if self._states is None:
                    self._states = EncoderOutput(torch.zeros_like(states[:1, :1]))
                self._source.make_room(cross, lengths)
                cell = self._source.allocate([slots[i] for i in index], lengths)  # [n]
                place = _places(lengths, states.shape[1], model.device)
                _, layers = decoder_layers(model, states)
                for i, layer in enumerate(layers):
                    for pool, values in ((cross.key, layer.keys), (cross.value, layer.values)):
                        self._backend.scatter_rows(pool[i], cell, _rows_of(values, place))

    def step(self, rows: Rows) -> Tensor:
        model, token = self._model, rows.token.long()
        for cache, pool in zip(self._caches, (self._own, self._cross), strict=True):
            cache.point_to(pool.key, pool.value)
        self._own.forget_unseen(rows.tree, rows.cell, self._position)
        cross = Cells.of_encoder(rows, self._source)
        step = Step(
            self._backend,
            rows,
            Cells.of_tree(rows),
            rows.position,
            cross=cross,
            cross_key=self._cross.key,
            given_windows=self.windows,
        )
        if self._needs_positions:
            self._backend.scatter_rows(self._position, rows.cell, rows.position[:, None])
            step.cell_position = self._position[:, 0]
        inputs = {}
        if self._positions is not None:
            step.embedding = self._positions.rows(token, rows.position)
        elif model.memory.biases is not None:
            step.bias = biases_upto(model, rows.longest)
        else:
            inputs["decoder_position_ids"] = rows.position[:, None].long()
        with model.lock, attending(model.configs, step):
            out = model.network(
                encoder_outputs=self._states,
                decoder_input_ids=token[:, None],
                use_cache=True,
                **{model.cache_name: self._cache},
                **inputs,
            )
        return out.logits[:, -1]  # [R, V]


def decoder_layers(model: HuggingFaceModel, states: Tensor) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return layers with keys and values: of the start token [A, G, 1, D], of encoder states [A, H, E, D].

    `states` are the encoder states [A, E, d].
    """
    cache = with_cross(kept(), kept(), is_known=False)
    start = torch.full((states.shape[0], 1), model.start_id, device=model.device)
    # some networks project the states before their decoder gets them
    model.network(
        encoder_outputs=EncoderOutput(states),
        decoder_input_ids=start,
        use_cache=True,
        **{model.cache_name: cache},
    )
    return cache.self_attention_cache.layers, cache.cross_attention_cache.layers


class PromptSession(Session):
    """A decoder alone. Keys and values of a prompt are kept once, for all rows that continue it.

    The prompt's last token is the row that every hypothesis starts from, in place of the start token.
    """

    def __init__(self, model: HuggingFaceModel, backend: Backend) -> None:
        self._model, self._backend = model, backend
        assert model.memory.own is not None
        pool = PromptPool(*model.memory.own, model.device)
        cells, is_windowed = SourceCells(model.device), model.memory.is_windowed
        self._prompts = Prompts(pool, cells, needs_positions=is_windowed)
        self._cache = TreeCache(model.memory.own.num_layers)
        self.windows: set[int] = set()  # windows that the model has asked for so far

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._prompts.reserve(num_slots, num_cells)

    def release(self, slots: Sequence[int]) -> None:
        self._prompts.release(slots)

    def buffers(self) -> Sequence[Tensor]:
        return self._prompts.buffers()

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        return self._prompts.max_bytes(num_cells, source_length)

    def encode(
        self, sources: Sequence[Tensor], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        model, pool, prompts = self._model, self._prompts.pool, self._prompts.cells
        self._prompts.keep_last(sources, slots)
        lengths = [source.numel() - 1 for source in sources]
        with model.lock:
            for part in batches(lengths):
                cell = prompts.allocate([slots[i] for i in part], [lengths[i] for i in part])
                pool.grow_prompts(prompts.num_cells)
                if not cell.numel():
                    continue
                own_lengths = [lengths[i] for i in part]
                at = torch.cat([torch.arange(n, dtype=torch.int32) for n in own_lengths])
                at = to_device(at, torch.int32, model.device)
                self._prompts.place(self._backend, pool.of_prompts(cell), at)
                ids, mask = padded(model, [sources[i][:-1] for i in part])
                place = _places(own_lengths, ids.shape[1], model.device)
                for i, layer in enumerate(prompt_layers(model, ids, mask)):
                    for own, values in ((pool.key, layer.keys), (pool.value, layer.values)):
                        rows = _rows_of(values, place)
                        self._backend.scatter_rows(own[i], pool.of_prompts(cell), rows)

    def step(self, rows: Rows) -> Tensor:
        model, own = self._model, self._prompts.pool
        begun = self._prompts.begin(self._backend, rows, Cells.of_tree(rows))
        token, position = begun.token, begun.position  # [R]
        self._cache.point_to(own.key, own.value)
        at = own.position[:, 0] if self._prompts.needs_positions else None
        step = Step(self._backend, rows, begun.cells, position, at, given_windows=self.windows)
        with model.lock, attending(model.configs, step):
            out = model.network(
                input_ids=token[:, None].long(),
                attention_mask=torch.ones_like(token)[:, None].long(),
                position_ids=position[:, None].long(),
                use_cache=True,
                **{model.cache_name: self._cache},
            )
        return out.logits[:, -1]  # [R, V]


def prompt_layers(model: HuggingFaceModel, ids: Tensor, mask: Tensor) -> Sequence[Any]:
    """Return layers with the keys and values [A, G, E, D] of prompts [A, E]."""
    cache = kept()
    inputs = {model.cache_name: cache}
    model.decoder(input_ids=ids, attention_mask=mask, use_cache=True, **inputs)
    return cache.layers
