"""How far tokens are from each other: for models with windows or with relative positions."""

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
        """[A, K, U] int32, how many positions a cell lies behind a row."""
        return self.of_row[..., None] - self.of_cell[:, None]

    def within(self, cells: Cells, window: int) -> Cells:
        """These cells, of which a row sees those of its last `window` positions alone."""
        assert cells.mask is not None
        is_far = (self.back >= window).transpose(1, 2)  # [A, U, K]
        bit = torch.arange(is_far.shape[2], device=is_far.device) & 63
        words = (is_far.long() << bit).split(64, 2)  # bits of each word of the mask
        far = torch.stack([word.sum(2) for word in words], 2)  # [A, U, W]
        return cells._replace(mask=cells.mask & ~far)


def by_entry(rows: Rows, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values of rows in a table of sources and entries, and where in it each row stands.

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
    # a line more, for padding rows
    table = values.new_zeros((num_sources + 1) * width, *values.shape[1:])
    table = table.index_copy_(0, place, values)[: num_sources * width]
    return table.view(num_sources, width, *values.shape[1:]), place
