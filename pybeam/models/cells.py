"""`Cells`: the cells that the rows of a step attend over, by source."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.contracts import Distances
from pybeam.kvcache.pools import SourceCells
from pybeam.models.rows import Rows


class Cells(NamedTuple):
    """The cells that R rows of A sources attend over, as `pybeam.ops.tree_attention` takes it."""

    offset: Tensor  # [A + 1] int32, rows of the a-th source are offset[a] .. offset[a + 1]
    slot: Tensor  # [A] int32, the line of each source in the tables below
    cell: Tensor  # [S, U] int32
    num_cells: Tensor  # [S] int32
    mask: Tensor | None = None  # [S, U, W] int64, which entries see a cell; None: all do
    entry: Tensor | None = None  # [R] int32, the entry of each row, where there is a mask

    @classmethod
    def of_tree(cls, rows: Rows) -> Cells:
        """Return the cells of the tokens that each row continues, and of its own."""
        tree = rows.tree
        return cls(
            rows.offset, rows.slot, tree.live_cell, tree.num_live, tree.live_mask, rows.entry
        )

    @classmethod
    def of_encoder(cls, rows: Rows, source: SourceCells) -> Cells:
        """Return the cells of all encoder states of each row's source."""
        return cls(rows.offset, rows.slot, source.cell, source.length)

    def attend(
        self,
        backend: Backend,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        distances: Distances | None = None,
    ) -> Tensor:
        """Compute ``softmax(scale * query key^T) value`` [R, H, D] over the cells that each row sees.

        Args:
            backend: the module that computes it.
            query: [R, H, D].
            key, value: [cells, G, D], pools.
            scale: of the products.
            distances: what they change in the scores.
        """
        return backend.tree_attention(query, key, value, *self, scale, distances)

    def of_sources(self, max_cells: int) -> Cells:
        """Return the same cells in tables [A, max_cells], with a line per source, in the sources' order."""
        slot = self.slot.long()
        order = torch.arange(slot.numel(), dtype=torch.int32, device=slot.device)
        mask = None if self.mask is None else self.mask[slot, :max_cells]
        cell, num_cells = self.cell[slot, :max_cells], self.num_cells[slot]
        return Cells(self.offset, order, cell, num_cells, mask, self.entry)
