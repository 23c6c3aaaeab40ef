"""Pools of cells for keys and values, and the cells of encoder states."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from pybeam.backends import poison
from pybeam.backends.arrays import resized
from pybeam.backends.memory import large_array
from pybeam.backends.transfer import all_to_device, to_device
from pybeam.contracts import PAGE_CELLS
from pybeam.kvcache.token_tree import TokenTree


class KeyValuePool:
    """Keys and values of all layers, one cell per token.

    Attributes:
        both: per layer [cells, 2, H, D], the view to write to.
        key, value: per layer [cells, H, D], views of `both`.
        cell_bytes: bytes of one cell in all layers.
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
        pool = torch.empty(shape, dtype=dtype, device=device)  # [layers, cells, 2, H, D]
        self.cell_bytes = num_layers * math.prod(shape[2:]) * pool.itemsize
        # a GPU has a tensor for each layer
        self._whole = pool if device.type == "cpu" else None
        self._set(pool.unbind(0))

    @property
    def num_cells(self) -> int:
        return self.both[-1].shape[0]

    @property
    def memory(self) -> Tensor:
        """Keys and values of all layers on a CPU, [layers, cells, 2, H, D]."""
        assert self._whole is not None, "only a CPU has all layers in one tensor"
        return self._whole

    def grow(self, num_cells: int) -> None:
        """Make room for that many cells. Old cells keep their contents."""
        if num_cells > self.num_cells:
            kept = slice(self.num_cells)
            self._replace(num_cells, [(kept, kept)])

    def grow_ahead(self, num_cells: int, wished: int) -> None:
        """Make room for that many cells. If there is too little, make room for `wished` if memory allows."""
        if num_cells > self.num_cells:
            with contextlib.suppress(torch.OutOfMemoryError):
                self.grow(max(num_cells, wished))
                return
        self.grow(num_cells)

    def forget_unseen(self, tree: TokenTree, new: Tensor, *others: Tensor) -> None:
        """Poison the cells of a tree that hold nothing, see `TokenTree.is_forgotten`.

        `others` have a line for each cell, too, or none at all.
        """
        if poison.IS_ON:
            where = tree.is_forgotten(new)
            num = where.numel()
            kept = (*self.both, *(other for other in others if other.numel()))
            poison.forget([array[:num] for array in kept], where)

    def forget_pages(self, pages: Sequence[int]) -> None:
        """Poison these pages, which nobody uses any more."""
        forget_pages(self.both, pages)

    def _replace(self, num_cells: int, moves: Sequence[tuple[slice, slice]]) -> None:
        """Have new tensors of so many cells. `moves` are slices of old cells, and their places in the new."""
        if self._whole is not None:
            old = self._whole
            self._whole = large_array((old.shape[0], num_cells, *old.shape[2:]), old.dtype)
            for before, after in moves:
                self._whole[:, after] = old[:, before]
            self._set(self._whole.unbind(0))
            return
        # layer by layer, so that a pool which fills the memory need not fit twice
        old_cells = self.num_cells
        try:
            for i, layer in enumerate(self.both):
                grown = layer.new_empty(num_cells, *layer.shape[1:])
                for before, after in moves:
                    grown[after] = layer[before]
                self._set_layer(i, grown)
        except torch.OutOfMemoryError:
            for i, layer in enumerate(self.both):
                if layer.shape[0] > old_cells:
                    for before, after in moves:
                        layer[before] = layer[after].clone()
                    self._set_layer(i, layer[:old_cells])
            raise

    def _set_layer(self, i: int, layer: Tensor) -> None:
        self.both[i] = layer
        self.key[i], self.value[i] = layer.unbind(1)

    def _set(self, layers: Iterable[Tensor]) -> None:
        self.both = list(layers)
        self.key = [both[:, 0] for both in self.both]
        self.value = [both[:, 1] for both in self.both]


def cells_of_pages(num_positions: int) -> int:
    """Return the number of cells in the pages that so many positions take."""
    return -(-num_positions // PAGE_CELLS) * PAGE_CELLS


def forget_pages(
    arrays: Sequence[Tensor], pages: Sequence[int], *, from_behind: bool = False
) -> None:
    """Poison pages that nobody uses any more in arrays [cells, ...], whose last cell may be the first."""
    if not poison.IS_ON:
        return
    page = torch.arange(arrays[0].shape[0], device=arrays[0].device) // PAGE_CELLS
    where = torch.isin(page, to_device(pages, page.dtype, page.device))
    poison.forget(arrays, where.flip(0) if from_behind else where)


class SourceCells:
    """Cells of the encoder states of every slot, given out in pages on the host.

    Attributes:
        cell: [S, U] int32, cells of every slot, on the device.
        length: [S] int32, how many of them the slot's last source uses.
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
        # both or, if there is no memory, none
        cell, lengths = resized(self.cell, (num_slots, length)), resized(self.length, (num_slots,))
        self.cell, self.length = cell, lengths

    def make_room(self, pool: KeyValuePool, lengths: Sequence[int]) -> None:
        """Have room in the pool of these cells for sources of these lengths.

        If the pool must grow, it gets room for a source of their mean length in every slot: the next ones
        find theirs, and no array that a captured step refers to is replaced. Beyond that it grows by an
        eighth at least, so that copies are few.
        """
        num_pages = sum(map(cells_of_pages, lengths)) // PAGE_CELLS
        missing = max(0, num_pages - len(self._free))
        num_slots = self.length.numel()
        wished = max(
            -(-num_pages * num_slots // max(1, len(lengths))),
            pool.num_cells * 9 // 8 // PAGE_CELLS,
        )
        pool.grow_ahead((self._num_pages + missing) * PAGE_CELLS, wished * PAGE_CELLS)

    def allocate(self, slots: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Give cells to these slots. Returns all of them, slot by slot, [sum(lengths)] int32."""
        self.take(slots, lengths)
        return self._write(slots, lengths)

    def take(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Give cells to these slots, and leave it to the caller to `write` them."""
        for slot, length in zip(slots, lengths, strict=True):
            self._pages[slot] = self._take(cells_of_pages(length) // PAGE_CELLS)
        # a table that grows is replaced, so it grows in large steps
        self.reserve(0, 1 << max(max(lengths) - 1, 0).bit_length())

    def _write(self, slots: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Write the pages of these slots into the tables. Returns the cells of `allocate`."""
        index, length, table, used = all_to_device(
            (slots, lengths, *self.lines(slots, lengths)), self.cell.device
        )
        self.write(index, length, table)
        return used

    def write(self, slot: Tensor, length: Tensor, lines: Tensor) -> None:
        """Write lines [A, U] of cells, which sources of these lengths [A] use, into the tables."""
        index = slot.long()
        self.cell[:, : lines.shape[1]].index_copy_(0, index, lines)
        self.length.index_copy_(0, index, length)

    def lines(self, slots: Sequence[int], lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the cells of these slots [A, U], and those that are used, slot by slot [sum(lengths)]."""
        pages = [self._pages[slot] for slot in slots]
        most = max(map(len, pages), default=0)
        self.reserve(max(slots, default=-1) + 1, most * PAGE_CELLS)
        # page 0 stands where a source has none: nobody reads that
        page = np.array([own + [0] * (most - len(own)) for own in pages], dtype=np.int32)
        within = np.arange(PAGE_CELLS, dtype=np.int32)
        cell = (PAGE_CELLS * page[..., None] + within).reshape(len(slots), most * PAGE_CELLS)
        is_used = np.arange(cell.shape[1]) < np.array(lengths)[:, None]  # [A, U]
        return cell, cell[is_used]

    def release(self, slots: Sequence[int]) -> list[int]:
        """Free the cells of these slots, which have no rows that read them. Returns the pages."""
        freed = [page for slot in slots for page in self._pages.pop(slot, ())]
        self._free += freed
        return freed

    def _take(self, num: int) -> list[int]:
        missing = num - len(self._free)
        if missing > 0:
            self._free += range(self._num_pages, self._num_pages + missing)
            self._num_pages += missing
        taken = self._free[len(self._free) - num :]
        del self._free[len(self._free) - num :]
        return taken
