"""Exported models: an encoder and a decoder step that ONNX Runtime computes, searched like any other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends import Backend, poison
from pybeam.kvcache.pools import SourceCells, cells_of_pages, forget_pages
from pybeam.models.base import MAX_ENCODER_TOKENS, Session
from pybeam.models.cells import Cells
from pybeam.models.onnx.graphs import ExportedModel, counted, padded, places
from pybeam.models.plain_cells import is_used, of_sources, with_masks
from pybeam.models.rows import Rows
from pybeam.models.transformer.config import TransformerConfig
from pybeam.models.transformer.sources import TextSources
from pybeam.models.transformer.speech import SpeechSources


class OnnxModel(TextSources, ExportedModel):
    """A transformer that `pybeam.load_model` found as ONNX graphs."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.config = config
        self.max_positions, self.pad_id = config.max_positions, config.pad_id
        self.max_source_positions = config.max_source_positions
        heads, layers = config.num_decoder_heads, config.num_decoder_layers
        key_value = (layers, 2, heads, None, None, config.hidden_size // heads)
        self.encoder.check(2, {"key_value": key_value})
        # beside keys and values of a layer's own tokens and its sources
        self.decoder.check(
            8 + 4 * layers, {"logits": (None, self.vocab_size), "key_value": key_value}
        )

    def __repr__(self) -> str:
        kind, config = type(self).__name__, self.config
        return f"{kind}({config.model_type}, V={self.vocab_size}, {config.path.parent})"

    def session(self, backend: Backend) -> OnnxSession:
        """Make a fresh session. Graphs have kernels of their own, so the backend does not matter."""
        return OnnxSession(self)


class OnnxSpeechModel(SpeechSources, OnnxModel):
    """The same for a speech model: a source is features [E, F], as for `SpeechTransformer`."""


class KeyValueTable:
    """Keys and values by layer, head and cell, as the decoder's graph takes them.

    Cell c is line c + 1. Line 0 holds zeros and stands where there is no cell. A graph multiplies it with
    zero, so it must not hold NaN.
    """

    def __init__(self, num_layers: int, num_heads: int, head_size: int) -> None:
        self._memory = torch.zeros(num_layers, 2, num_heads, 1, head_size)  # [layers, 2, H, C, D]

    @property
    def cell_bytes(self) -> int:
        layers, _, heads, _, size = self._memory.shape
        return math.prod((layers, 2, heads, size)) * self._memory.itemsize

    def grow(self, num_cells: int) -> None:
        """Make room for that many cells. Old cells keep their contents."""
        old, num = self._memory, num_cells + 1
        if num > old.shape[3]:
            self._memory = old.new_empty(*old.shape[:3], num, old.shape[4])
            self._memory[:, :, :, : old.shape[3]] = old

    @property
    def cells(self) -> Tensor:
        """Keys and values by cell, [C, layers, 2, H, D]."""
        return self._memory[:, :, :, 1:].movedim(3, 0)

    def write(self, cell: Tensor, key_value: Tensor) -> None:
        """Put [layers, 2, H, n, D] into cells [n]."""
        self._memory.index_copy_(3, cell.long() + 1, key_value)

    def inputs(self, name: str) -> dict[str, Tensor]:
        """Return the graph's inputs ``<name>_key.<layer>`` and ``<name>_value.<layer>``, as views."""
        parts = enumerate(("key", "value"))
        return {
            f"{name}_{part}.{i}": layer[j]
            for j, part in parts
            for i, layer in enumerate(self._memory)
        }


class OnnxSession(Session):
    """Keys and values of the decoder's own tokens and of the encoder states, each kept once."""

    def __init__(self, model: OnnxModel) -> None:
        self._model, config = model, model.config
        shape = config.num_decoder_layers, config.num_decoder_heads
        size = config.hidden_size // config.num_decoder_heads
        self._own, self._cross = KeyValueTable(*shape, size), KeyValueTable(*shape, size)
        self._source = SourceCells(model.device)
        # [cells], the place of a cell's row among the rows of its source; -1 between steps
        self._beside = torch.zeros(0, dtype=torch.long)
        self._logits = torch.empty(0, model.vocab_size)

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._own.grow(num_cells)
        if self._beside.numel() < num_cells:
            self._beside = torch.full((num_cells,), -1)
        self._source.reserve(num_slots)

    def encode(
        self, sources: Sequence[Tensor], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        longest = max(map(self._model.source_length, sources), default=0)
        size = max(1, MAX_ENCODER_TOKENS // max(1, longest))
        for start in range(0, len(sources), size):
            part = slice(start, start + size)
            self._encode(sources[part], slots[part])

    def release(self, slots: Sequence[int]) -> None:
        forget_pages([self._cross.cells], self._source.release(slots))

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        of_source = cells_of_pages(source_length) * self._cross.cell_bytes
        return num_cells * self._own.cell_bytes + of_source

    def step(self, rows: Rows) -> Tensor:
        tree, slot, num_rows = rows.tree, rows.slot.long(), int(rows.offset[-1])
        num_padded = rows.token.numel()
        if poison.IS_ON:
            where = tree.is_forgotten(rows.cell)
            poison.forget([self._own.cells[: where.numel()]], where)
        if self._logits.shape[0] < num_padded:
            self._logits = torch.empty(num_padded, self._model.vocab_size)
        logits = self._logits[:num_padded]
        if not num_rows:
            return logits
        row, place = places(rows.offset, num_rows)  # [A, K], [R]
        most = max(1, int(tree.num_live[slot].max()))
        seen = with_masks(of_sources(Cells.of_tree(rows), most))
        assert seen.mask is not None
        live = seen.cell.long()  # [A, U]
        cell = rows.cell[:num_rows].long()
        self._beside[cell] = place % row.shape[1]
        is_live, beside = is_used(seen), self._beside[live]  # [A, U]
        self._beside[cell] = -1
        is_past, is_new = is_live & (beside < 0), is_live & (beside >= 0)
        bit = rows.entry[row].long()  # [A, K]
        word = (bit >> 6)[:, :, None].expand(-1, -1, live.shape[1])  # [A, K, U]
        mask = seen.mask.transpose(1, 2).gather(1, word)
        is_seen = ((mask >> (bit & 63)[:, :, None]) & 1).bool()  # [A, K, U]
        # [A, K], the column of the mask that says which rows see a row; cells of older tokens go behind
        target = torch.where(is_new, beside, row.shape[1])
        column = row.new_full((row.shape[0], row.shape[1] + 1), -1)
        column.scatter_(1, target, torch.arange(live.shape[1]).expand_as(live))
        column = column[:, None, :-1].expand(-1, row.shape[1], -1)  # [A, K, K]
        sees_row = is_seen.gather(2, column.clamp(min=0)) & (column >= 0)
        length = self._source.length[slot]  # [A]
        cross_cell = self._source.cell[slot, : max(1, int(length.max()))].long()  # [A, E]
        cross_mask = counted(cross_cell.shape[1], length)
        (key_value,) = self._model.decoder(
            {
                "token": rows.token[:num_rows].long(),
                "position": rows.position[:num_rows].long(),
                "row": row,
                "place": place,
                "own_cell": torch.where(is_past, live + 1, 0),
                # [A, K, U + K]
                "own_mask": torch.cat((is_seen & is_past[:, None], sees_row), 2),
                "cross_cell": torch.where(cross_mask, cross_cell + 1, 0),
                "cross_mask": cross_mask,
                **self._own.inputs("own"),
                **self._cross.inputs("cross"),
            },
            "key_value",
            logits=logits[:num_rows],
        )  # [layers, 2, H, A, K, D]
        self._own.write(cell, key_value.flatten(3, 4).index_select(3, place))
        return logits

    def _encode(self, sources: Sequence[Tensor], slots: Sequence[int]) -> None:
        lengths = [self._model.source_length(source) for source in sources]
        cell = self._source.allocate(slots, lengths)  # [sum(lengths)]
        self._cross.grow(self._source.num_cells)
        if not cell.numel():
            return
        (key_value,) = self._model.encoder(padded(sources), "key_value")  # [layers, 2, H, B, P, D]
        kept = counted(key_value.shape[4], torch.tensor(lengths)).flatten().nonzero()[:, 0]
        self._cross.write(cell, key_value.flatten(3, 4).index_select(3, kept))
