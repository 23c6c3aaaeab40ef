"""Attention of the rows of one call, with the windows of the layers."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.defaults import write_nodes
from pybeam.contracts import Distances, NewNodes
from pybeam.models.causal.layers import CausalLayer, CausalStack
from pybeam.models.cells import Cells


class Seen(NamedTuple):
    """The cells that the rows of one call see. Rows of prompts are no entries: they see all before them."""

    cells: Cells
    position: Tensor  # [R] int32
    cell_position: Tensor | None  # [cells] int32, where layers have windows and rows are no prompts

    @property
    def is_prompt(self) -> bool:
        """Whether the rows are those of prompts, and not entries of beams."""
        return self.cells.entry is None

    def attend(
        self,
        backend: Backend,
        stack: CausalStack,
        layer: CausalLayer,
        query: Tensor,
        pool: tuple[Tensor, Tensor],
        new: NewNodes,
    ) -> Tensor:
        """Compute ``softmax(scale * query key^T) value`` [R, H, D] over the cells that each row sees.

        The keys and values of the rows are written to their cells first.

        Args:
            backend: the module that computes it.
            stack, layer: have the scale, the soft cap and the window.
            query: [R, H, D].
            pool: keys and values of the layer, [cells, G, D] each.
            new: the nodes of the rows.
        """
        window, cap = layer.window, stack.soft_cap
        if self.is_prompt:
            write_nodes(backend.scatter_rows, *pool, new)
            prompts = self.cells[:4]
            return backend.prompt_attention(
                query, *pool, *prompts, self.position, stack.scale, window or 0, cap or 0.0
            )
        distances = None
        if window is not None:
            distances = Distances(self.position, self.cell_position, window=window, soft_cap=cap)
        elif cap is not None:
            distances = Distances(soft_cap=cap)
        return self.cells.attend(backend, query, *pool, stack.scale, distances, new)
