"""Relative positions: what a model adds to attention scores for how far away a token is."""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.base import Rows
from pybeam.models.huggingface.attention import CannotAttend, Relative, by_entry, catching
from pybeam.models.huggingface.model import HuggingFaceModel

FIRST_LENGTH = 64


class BiasTables:
    """Of every decoder layer, what it adds to the scores of a token so many positions back.

    A model hands its biases to its attention function; here they are caught in a call on many tokens, and
    the last of those has seen every distance.

    Raises:
        CannotAttend: it hands over none, or some between decoder and encoder.
    """

    @torch.inference_mode()
    def __init__(self, model: HuggingFaceModel) -> None:
        self._model = model
        self._tables: list[Tensor] = []
        self.upto(FIRST_LENGTH)

    @torch.inference_mode()
    def upto(self, length: int) -> list[Tensor]:
        """By layer: [H, P] for distances 0 to P - 1, where P is at least `length`."""
        if not self._tables or self._tables[0].shape[1] < length:
            known = self._tables[0].shape[1] if self._tables else 0
            self._tables = self._caught(max(length, 2 * known))
        return self._tables

    def _caught(self, length: int) -> list[Tensor]:
        model = self._model
        weight = next(model.decoder.parameters())
        with model.lock, catching(model.configs) as caught:
            model.decoder(
                input_ids=torch.full((1, length), model.start_id, device=model.device),
                encoder_hidden_states=weight.new_zeros(1, 1, model.decoder.config.hidden_size),
                use_cache=False,
            )
        own = [bias for bias, num_keys in caught if num_keys == length]
        cross = [bias for bias, num_keys in caught if num_keys != length]
        if not own or any(bias is None for bias in own):
            raise CannotAttend(
                "its decoder has no `embed_positions`, so its positions are relative, and it does not "
                "tell the attention function of them"
            )
        if any(bias is not None and bool(bias.any()) for bias in cross):
            raise CannotAttend("its attention over encoder states has a `position_bias`")
        # layers that share a bias share a table
        tables = {id(bias): bias[0, :, -1].flip(-1).contiguous() for bias in own}
        return [tables[id(bias)] for bias in own]


class RowsByDistance(Relative):
    """Attention with biases in one step: rows in a table [A, K], cells gathered once per source.

    Args:
        tables: of `BiasTables`.
        position: [cells, 1] int32, of the token in each cell.
        reads_sizes: whether to ask the device how many cells are live at most.
    """

    def __init__(
        self, rows: Rows, tables: list[Tensor], position: Tensor, *, reads_sizes: bool
    ) -> None:
        self._rows, self._tables, self._position = rows, tables, position
        self._reads_sizes = reads_sizes
        self._masks: dict[int, Tensor] = {}

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        table, place = by_entry(self._rows, query)  # [A, K, H, D]
        key, value = (self._gathered(pool) for pool in (key, value))  # [A, G, U, D]
        out = F.scaled_dot_product_attention(
            table.transpose(1, 2),
            key,
            value,
            self._mask(layer).to(query.dtype),
            scale=scale,
            enable_gqa=key.shape[1] != query.shape[1],
        )
        out = out.transpose(1, 2).flatten(0, 1)  # [A * K, H, D]
        return out.index_select(0, place.clamp(max=out.shape[0] - 1))

    def _gathered(self, pool: Tensor) -> Tensor:
        cells = pool.index_select(0, self._cell.flatten())
        return cells.view(*self._cell.shape, *pool.shape[1:]).transpose(1, 2)

    @cached_property
    def _cell(self) -> Tensor:
        """[A, U] long, live cells of every source."""
        tree, slot = self._rows.tree, self._rows.slot.long()
        most = tree.live_cell.shape[1]
        if self._reads_sizes and slot.numel():
            most = int(tree.num_live[slot].max())
        cell = tree.live_cell[slot, :most].long()
        is_live = torch.arange(most, device=slot.device) < tree.num_live[slot][:, None]
        return torch.where(is_live, cell, 0)

    @cached_property
    def _distance(self) -> Tensor:
        """[A, K, U] long, how far back each cell is; -1 where its row does not see it."""
        rows, most = self._rows, self._cell.shape[1]
        tree, slot = rows.tree, rows.slot.long()
        bit = torch.arange(tree.row_cell.shape[1], device=slot.device)
        mask = tree.live_mask[slot, :most]  # [A, U, W]
        is_seen = (mask.index_select(2, bit >> 6) >> (bit & 63)) & 1  # [A, U, K]
        is_live = torch.arange(most, device=slot.device) < tree.num_live[slot][:, None]
        is_seen = (is_seen.bool() & is_live[..., None]).transpose(1, 2)
        last, _ = by_entry(rows, rows.position)  # [A, K]
        there = self._position[:, 0][self._cell]  # [A, U]
        distance = last[..., None] - there[:, None]
        return torch.where(is_seen, distance, -1).long()

    def _mask(self, layer: int) -> Tensor:
        """[A, H, K, U], what is added to scores."""
        table = self._tables[layer]  # [H, P]
        if id(table) not in self._masks:
            distance = self._distance
            bias = table[:, distance.clamp(0, table.shape[1] - 1)]  # [H, A, K, U]
            bias = bias.masked_fill(distance < 0, float("-inf"))
            self._masks[id(table)] = bias.transpose(0, 1)
        return self._masks[id(table)]
