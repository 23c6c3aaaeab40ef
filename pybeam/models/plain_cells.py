"""The cells of a step as attention in plain torch takes them, which tree attention does not need."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.contracts import Paths
from pybeam.models.cells import Cells


def of_sources(cells: Cells, max_cells: int) -> Cells:
    """Return the same cells in tables [A, max_cells], with a line per source, in the sources' order."""
    slot = cells.slot.long()
    order = torch.arange(slot.numel(), dtype=torch.int32, device=slot.device)
    mask = None if cells.mask is None else cells.mask[slot, :max_cells]
    cell, num_cells = cells.cell[slot, :max_cells], cells.num_cells[slot]
    paths = None
    if cells.paths is not None:
        place, length, shared = cells.paths
        paths = Paths(place[slot], length[slot], None if shared is None else shared[slot])
    return Cells(cells.offset, order, cell, num_cells, mask, cells.entry, paths)


def is_used(cells: Cells) -> Tensor:
    """[S, U] bool, which places of the table hold a cell."""
    place = torch.arange(cells.cell.shape[1], device=cells.cell.device)
    return place < cells.num_cells[:, None]


def with_masks(cells: Cells) -> Cells:
    """Return the same cells with masks in place of paths.

    Places that hold no cell have the first one of their line, because attention in plain torch reads those,
    too. Other cells may hold NaN, which times 0 is NaN.
    """
    cells = cells._replace(cell=torch.where(is_used(cells), cells.cell, cells.cell[:, :1]))
    if cells.paths is None:
        return cells
    place, length, num_shared = cells.paths
    num_slots, width, num_columns = place.shape
    max_cells, num_words = cells.cell.shape[1], -(-width // 64)
    device = place.device
    shared = torch.zeros_like(length) if num_shared is None else num_shared
    entry = torch.arange(width, device=device)[:, None]
    is_within = torch.arange(num_columns, device=device) < length[:, None]  # [S, T]
    is_there = is_within[:, None] & (place >= 0)
    word = (place + shared[:, None, None]).long() * num_words + (entry >> 6)
    word = torch.where(is_there, word, max_cells * num_words)  # [S, K, T]
    # no row sees a cell twice, so that sums of bits are masks
    bits = (torch.ones_like(entry) << (entry & 63)).expand_as(word)
    mask = bits.new_zeros(num_slots, max_cells * num_words + 1)
    mask.scatter_add_(1, word.flatten(1), bits.flatten(1))
    mask = mask[:, :-1].unflatten(1, (max_cells, num_words))  # [S, U, W]
    is_shared = torch.arange(max_cells, device=device) < shared[:, None]
    mask = mask.masked_fill(is_shared[..., None], -1)
    return cells._replace(mask=mask, paths=None)
