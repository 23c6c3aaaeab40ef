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
