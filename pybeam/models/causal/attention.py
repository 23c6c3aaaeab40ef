"""What the rows of one call attend over, with the windows of the layers."""

from __future__ import annotations

from torch import Tensor

from pybeam.backends import Backend
from pybeam.models.cells import Cells
from pybeam.models.distances import Distances


class SeenCells:
    """The cells that the rows of one call see.

    Args:
        cells: what they see in layers without a window.
        distances: how far the cells are from the rows; None if no layer has a window.
        longest: no row sees more positions; None: not known on the host.
    """

    def __init__(self, cells: Cells, distances: Distances | None, longest: int | None) -> None:
        self._cells, self._distances, self._longest = cells, distances, longest
        self._within: dict[int, Cells] = {}

    def attend(
        self,
        backend: Backend,
        query: Tensor,
        pool: tuple[Tensor, Tensor],
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Compute ``softmax(scale * query key^T) value`` [R, H, D] over the cells that each row sees.

        Args:
            backend: the module that computes it.
            query: [R, H, D].
            pool: keys and values of the layer, [cells, G, D] each.
            scale: of the products.
            window: a row sees its last so many positions, its own counted; None: all.
        """
        return self.within(window).attend(backend, query, *pool, scale)

    def within(self, window: int | None) -> Cells:
        """Return the cells that rows see in layers with this window."""
        if window is None or (self._longest is not None and self._longest <= window):
            return self._cells
        if window not in self._within:
            assert self._distances is not None
            self._within[window] = self._distances.within(self._cells, window)
        return self._within[window]
