"""The cells that the rows of a step attend over, by source."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.models.rows import Rows


class Cells(NamedTuple):
    """The cells that each source's rows attend over, as `ops.tree_attention` takes them."""

    slot: Tensor  # [A] int32
    cell: Tensor  # [S, U] int32
    num_cells: Tensor  # [S] int32
    mask: Tensor | None = None  # [S, U, W] int64
    position: Tensor | None = None  # [S, U] int32, of the token in each cell
    last: Tensor | None = None  # [S, K] int32, positions of the source's rows, by entry

    def of_sources(self, most: int) -> Cells:
        """The same for slots 0 to A - 1, one per source in their order, and with `most` cells at most."""
        slot = self.slot.long()
        order = torch.arange(slot.numel(), dtype=torch.int32, device=slot.device)
        mask = None if self.mask is None else self.mask[slot, :most]
        return Cells(order, self.cell[slot, :most], self.num_cells[slot], mask)

    def within(self, window: int) -> Cells:
        """The same cells, those of the last `window` positions in sight."""
        assert self.mask is not None and self.position is not None and self.last is not None
        is_far = self.position[..., None] <= self.last[:, None] - window  # [S, U, K]
        bit = torch.arange(is_far.shape[2], device=is_far.device) & 63
        words = (is_far.long() << bit).split(64, 2)  # bits of each word of the mask
        far = torch.stack([word.sum(2) for word in words], 2)  # [S, U, W]
        return self._replace(mask=self.mask & ~far)


def by_entry(rows: Rows, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values [R, ...] of rows in a table [A, K, ...] of sources and entries, and each row's place [R] in
    A * K of it, behind them for padding.
    """
    num_sources, width = rows.slot.numel(), rows.tree.row_cell.shape[1]
    number = torch.arange(rows.token.numel(), dtype=torch.int32, device=rows.token.device)
    source = torch.searchsorted(rows.offset, number, right=True) - 1
    place = source * width + rows.bit
    # a line more, for padding rows
    table = values.new_zeros((num_sources + 1) * width, *values.shape[1:])
    table = table.index_copy_(0, place, values)[: num_sources * width]
    return table.view(num_sources, width, *values.shape[1:]), place
