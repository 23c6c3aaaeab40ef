"""Pools of cells for keys and values, and the cells of encoder states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends.memory import large_array
from pybeam.backends.transfer import to_device
from pybeam.contracts import PAGE_CELLS


class KeyValuePool:
    """Keys and values of all layers, one cell per token.

    Attributes:
        both: per layer [cells, 2, H, D], the view to write to.
        key, value: per layer [cells, H, D], views of `both`.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, 0, 2, num_heads, head_size)
        self._pool = torch.empty(shape, dtype=dtype, device=device)  # [layers, cells, 2, H, D]
        self._split()

    @property
    def num_cells(self) -> int:
        return self._pool.shape[1]

    @property
    def cell_bytes(self) -> int:
        """Number of bytes of one cell in all layers."""
        layers, _, *cell = self._pool.shape
        return layers * math.prod(cell) * self._pool.itemsize

    @property
    def reads_sizes(self) -> bool:
        """Whether a step may read sizes back. On a GPU it would have to wait for them."""
        return self._pool.device.type == "cpu"

    @property
    def memory(self) -> Tensor:
        """Keys and values of all layers. This is another tensor after the pool has grown."""
        return self._pool

    def grow(self, num_cells: int) -> None:
        """Make room for that many cells. Old cells keep their contents."""
        old = self._pool
        if num_cells <= old.shape[1]:
            return
        shape = (old.shape[0], num_cells, *old.shape[2:])
        is_host = old.device.type == "cpu"
        self._pool = large_array(shape, old.dtype) if is_host else old.new_empty(shape)
        self._pool[:, : old.shape[1]] = old
        self._split()

    def _split(self) -> None:
        self.both = list(self._pool.unbind(0))
        self.key = [both[:, 0] for both in self.both]
        self.value = [both[:, 1] for both in self.both]


def cells_of_pages(num_positions: int) -> int:
    """Return the number of cells in the pages that so many positions take."""
    return -(-num_positions // PAGE_CELLS) * PAGE_CELLS


class SourceCells:
    """Cells of the encoder states of every slot, given out in pages on the host.

    Attributes:
        cell: [S, U] int32, cells of every slot, on the device.
        length: [S] int32, how many of them are used.
        num_cells: cells that all pages so far need.
    """

    def __init__(self, device: torch.device) -> None:
        self.cell = torch.zeros(0, 0, dtype=torch.int32, device=device)
        self.length = torch.zeros(0, dtype=torch.int32, device=device)
        self._free: list[int] = []
        self._pages: dict[int, list[int]] = {}  # slot -> its pages
        self._num_pages = 0

    @property
    def num_cells(self) -> int:
        return self._num_pages * PAGE_CELLS

    def reserve(self, num_slots: int, length: int = 0) -> None:
        """Make room for that many slots and cells per slot."""
        old = self.cell
        shape = max(old.shape[0], num_slots), max(old.shape[1], length)
        if shape == tuple(old.shape):
            return
        cell = old.new_zeros(shape)
        cell[: old.shape[0], : old.shape[1]] = old
        lengths = torch.cat((self.length, self.length.new_zeros(shape[0] - old.shape[0])))
        # both or, if there is no memory, none
        self.cell, self.length = cell, lengths

    def num_cells_with(self, lengths: Sequence[int]) -> int:
        """Return what `num_cells` is once sources of these lengths have their cells."""
        missing = sum(map(cells_of_pages, lengths)) // PAGE_CELLS - len(self._free)
        return (self._num_pages + max(0, missing)) * PAGE_CELLS

    def allocate(self, slots: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Give cells to these slots. Returns all of them, slot by slot, [sum(lengths)] int32."""
        longest = max(lengths, default=0)
        self.reserve(max(slots) + 1, longest)
        lines = []  # cells of each source
        for slot, length in zip(slots, lengths, strict=True):
            pages = self._pages[slot] = self._take(cells_of_pages(length) // PAGE_CELLS)
            cells = [PAGE_CELLS * page + i for page in pages for i in range(PAGE_CELLS)]
            lines.append(cells[:length])

        def on_device(values: Sequence) -> Tensor:
            return to_device(values, torch.int32, self.cell.device)

        index = on_device(slots).long()
        padded = on_device([line + [0] * (longest - len(line)) for line in lines])  # [A, U]
        self.cell[:, :longest].index_copy_(0, index, padded)
        self.length.index_copy_(0, index, on_device(lengths))
        return on_device([cell for line in lines for cell in line])

    def release(self, slots: Sequence[int]) -> None:
        """Free the cells of these slots."""
        for slot in slots:
            self._free += self._pages.pop(slot, ())
        # there may have been no memory for the others
        known = [slot for slot in slots if slot < self.length.numel()]
        index = to_device(known, torch.long, self.length.device)
        self.length.index_fill_(0, index, 0)

    def _take(self, num: int) -> list[int]:
        missing = num - len(self._free)
        if missing > 0:
            self._free += range(self._num_pages, self._num_pages + missing)
            self._num_pages += missing
        taken = self._free[len(self._free) - num :]
        del self._free[len(self._free) - num :]
        return taken
