"""Distances between tokens, for models with windows or relative positions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.models.cells import Cells
from pybeam.models.rows import Rows


class Distances(NamedTuple):
    """The positions of A sources' cells and rows, in the order of the sources."""

    of_cell: Tensor  # [A, U] int32, of the token in each cell
    of_row: Tensor  # [A, K] int32, of each row, by its entry

    @property
    def back(self) -> Tensor:
        """Return [A, K, U] int32: how many positions a cell lies before a row."""
        return self.of_row[..., None] - self.of_cell[:, None]

    def within(self, cells: Cells, window: int) -> Cells:
        """Return these cells with a mask: a row sees only those of its last `window` positions."""
        cells = cells.with_masks()
        assert cells.mask is not None
        is_far = (self.back >= window).transpose(1, 2)  # [A, U, K]
        bit = torch.arange(is_far.shape[2], device=is_far.device) & 63
        words = (is_far.long() << bit).split(64, 2)  # bits of each word of the mask
        far = torch.stack([word.sum(2) for word in words], 2)  # [A, U, W]
        return cells._replace(mask=cells.mask & ~far)


def by_entry(rows: Rows, values: Tensor) -> tuple[Tensor, Tensor]:
    """Put values of rows into a table of sources and entries. Returns the table, and the place of each row.

    Args:
        rows: R rows of A sources, with room for K entries each.
        values: [R, ...].

    Returns:
        The table [A, K, ...], zero where there is no row; and places [R] in A * K lines of it. The
        place of a row of padding is behind the table.
    """
    num_sources, width = rows.slot.numel(), rows.tree.row_cell.shape[1]
    number = torch.arange(rows.token.numel(), dtype=torch.int32, device=rows.token.device)
    source = torch.searchsorted(rows.offset, number, right=True) - 1
    place = source * width + rows.entry
    # one more line, for padding rows
    table = values.new_zeros((num_sources + 1) * width, *values.shape[1:])
    table = table.index_copy_(0, place, values)[: num_sources * width]
    return table.view(num_sources, width, *values.shape[1:]), place
