"""`Cells`: those of `pybeam.contracts`, which backends know, with ways to make them of the rows of a step."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam import contracts
from pybeam.backends import Backend
from pybeam.contracts import Distances, NewNodes, Paths
from pybeam.kvcache.pools import SourceCells
from pybeam.models.rows import Rows


class Cells(contracts.Cells):
    """How models get the cells of a step, and attend over them; see `pybeam.kvcache.token_tree`."""

    @classmethod
    def of_tree(cls, rows: Rows) -> Cells:
        """Return the cells of the tokens that each row continues, and of its own."""
        tree = rows.tree
        cells = cls(rows.offset, rows.slot, tree.live_cell, tree.num_live, entry=rows.entry)
        if tree.has_paths:
            return cells._replace(paths=Paths(tree.path, tree.path_length))
        return cells._replace(mask=tree.live_mask)

    @classmethod
    def of_path(cls, rows: Rows) -> Cells:
        """Return the cells of rows that are no entries, see `Session.read`: a line for each row."""
        line = torch.arange(rows.token.shape[0] + 1, dtype=torch.int32, device=rows.token.device)
        cell = rows.tree.live_cell[:, : rows.longest].index_select(0, rows.row_slot)
        return cls(line, line[:-1], cell, rows.position + 1)

    @classmethod
    def of_encoder(cls, rows: Rows, source: SourceCells) -> Cells:
        """Return the cells of all encoder states of each row's source."""
        return cls(rows.offset, rows.slot, source.cell, source.length)

    @property
    def given(self) -> tuple[Tensor, ...]:
        """All that is there, in order, as a `LayerProgram` takes it."""
        tensors = *self[:-1], *(self.paths or ())
        return tuple(tensor for tensor in tensors if tensor is not None)

    def attend(
        self,
        backend: Backend,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        distances: Distances | None = None,
        new: NewNodes | None = None,
    ) -> Tensor:
        """Compute ``softmax(scale * query key^T) value`` [R, H, D] over the cells that each row sees.

        Keys and values of new nodes are written to their cells first.

        Args:
            backend: the module that computes it.
            query: [R, H, D].
            key, value: [cells, G, D], pools.
            scale: of the products.
            distances: what they change in the scores.
            new: the nodes of the rows, where they are not in their cells yet.
        """
        return backend.tree_attention(query, key, value, self, scale, distances, new)

    def of_sources(self, max_cells: int) -> Cells:
        """Return the same cells in tables [A, max_cells], with a line per source, in the sources' order."""
        slot = self.slot.long()
        order = torch.arange(slot.numel(), dtype=torch.int32, device=slot.device)
        mask = None if self.mask is None else self.mask[slot, :max_cells]
        cell, num_cells = self.cell[slot, :max_cells], self.num_cells[slot]
        paths = None
        if self.paths is not None:
            place, length, shared = self.paths
            paths = Paths(place[slot], length[slot], None if shared is None else shared[slot])
        return Cells(self.offset, order, cell, num_cells, mask, self.entry, paths)

    @property
    def is_used(self) -> Tensor:
        """[S, U] bool, which places of the table hold a cell."""
        place = torch.arange(self.cell.shape[1], device=self.cell.device)
        return place < self.num_cells[:, None]

    def padded(self) -> Cells:
        """Return the same cells, with the first cell of each line in the places that hold none.

        Attention in plain torch reads those, too. Other cells may hold NaN, which times 0 is NaN.
        """
        return self._replace(cell=torch.where(self.is_used, self.cell, self.cell[:, :1]))

    def with_masks(self) -> Cells:
        """Return the same cells with masks in place of paths, for attention that knows masks alone."""
        if self.paths is None:
            return self
        place, length, num_shared = self.paths
        num_slots, width, num_columns = place.shape
        max_cells, num_words = self.cell.shape[1], -(-width // 64)
        device = place.device
        shared = torch.zeros_like(length) if num_shared is None else num_shared
        entry = torch.arange(width, device=device)[:, None]
        is_used = torch.arange(num_columns, device=device) < length[:, None]  # [S, T]
        is_there = is_used[:, None] & (place >= 0)
        word = (place + shared[:, None, None]).long() * num_words + (entry >> 6)
        word = torch.where(is_there, word, max_cells * num_words)  # [S, K, T]
        # no row sees a cell twice, so that sums of bits are masks
        bits = (torch.ones_like(entry) << (entry & 63)).expand_as(word)
        mask = bits.new_zeros(num_slots, max_cells * num_words + 1)
        mask.scatter_add_(1, word.flatten(1), bits.flatten(1))
        mask = mask[:, :-1].unflatten(1, (max_cells, num_words))  # [S, U, W]
        is_shared = torch.arange(max_cells, device=device) < shared[:, None]
        mask = mask.masked_fill(is_shared[..., None], -1)
        return self._replace(mask=mask, paths=None)
