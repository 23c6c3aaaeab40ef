"""Keep prompts and generated tokens in one pool of cells."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.contracts import Paths
from pybeam.kvcache.pools import KeyValuePool, SourceCells
from pybeam.models.cells import Cells
from pybeam.models.huggingface.distances import Distances, by_entry
from pybeam.models.rows import Rows


class Visible(NamedTuple):
    """The prompts and tokens that the rows of a step see."""

    cells: Cells  # prompts first
    distances: Distances | None  # if a layer depends on distances
    longest: int | None  # the most positions that one source has; None: not known on the host


class PromptPool(KeyValuePool):
    """A pool with two ends: the token tree takes cells from the front, prompts take them from the back.

    One attention reads both, so they must be in one pool.
    """

    num_own = 0
    num_prompt = 0

    def grow(self, num_cells: int) -> None:
        """Make room for that many cells of the token tree."""
        self._resize(num_cells, self.num_prompt)

    def grow_prompts(self, num_cells: int) -> None:
        """Make room for that many cells of prompts. The room at least doubles when it grows."""
        if num_cells > self.num_prompt:
            self._resize(self.num_own, max(num_cells, 2 * self.num_prompt))

    def of_prompts(self, cell: Tensor) -> Tensor:
        """Return where these cells of prompts are in the pool."""
        return self.num_cells - 1 - cell

    def visible(
        self, rows: Rows, position: Tensor, prompt: SourceCells, own_position: Tensor | None
    ) -> Visible:
        """Return the cells that the rows' sources attend over.

        Args:
            rows: R rows of A sources.
            position: [R] int32, the rows' positions, prompts counted.
            prompt: the prompts' cells.
            own_position: [cells, 1] int32, the positions of the tokens in the tree's cells; None if no
                layer of the model depends on distances.
        """
        tree, slot = rows.tree, rows.slot.long()  # [A]
        from_prompt, live = prompt.length[slot], tree.num_live[slot]  # [A]
        num_prompt, num_live, longest = prompt.cell.shape[1], tree.live_cell.shape[1], None
        if self.reads_sizes and slot.numel():
            num_prompt, num_live = int(from_prompt.max()), int(live.max())
            longest = int(position.max()) + 1 if position.numel() else 0
        place = torch.arange(num_prompt + num_live, device=slot.device) - from_prompt[:, None]
        is_own = place >= 0  # [A, U]
        own = place.clamp(0, max(num_live - 1, 0))
        own_cell = tree.live_cell[slot].gather(1, own) if num_live else own.int()
        prompt_cell = F.pad(self.of_prompts(prompt.cell[slot][:, :num_prompt]), (0, num_live))
        cell = torch.where(is_own, own_cell, prompt_cell)
        order = torch.arange(slot.numel(), dtype=torch.int32, device=slot.device)
        cells = Cells(rows.offset, order, cell, from_prompt + live, entry=rows.entry)
        if tree.has_paths:
            paths = Paths(tree.path[slot], tree.path_length[slot], from_prompt)
            cells = cells._replace(paths=paths)
        else:
            num_words = tree.live_mask.shape[2]
            mask = tree.live_mask[slot].gather(1, own[..., None].expand(-1, -1, num_words))
            mask = mask.masked_fill(~is_own[..., None], -1)  # [A, U, W], all rows see the prompt
            cells = cells._replace(mask=mask)
        distances = None
        if own_position is not None and position.numel():
            in_prompt = place + from_prompt[:, None]
            at = torch.where(is_own, own_position[:, 0][own_cell.long()], in_prompt)
            # rows of a beam are at one position; rows that draft follow one another
            distances = Distances(at, by_entry(rows, position)[0])
        return Visible(cells, distances, longest)

    def _resize(self, num_own: int, num_prompt: int) -> None:
        num_own, num_prompt = max(num_own, self.num_own), max(num_prompt, self.num_prompt)
        if (num_own, num_prompt) == (self.num_own, self.num_prompt):
            return
        old, front, back = self._pool, self.num_own, self.num_prompt
        self._pool = old.new_empty(old.shape[0], num_own + num_prompt, *old.shape[2:])
        self._pool[:, :front] = old[:, :front]
        if back:
            self._pool[:, -back:] = old[:, -back:]
        self.num_own, self.num_prompt = num_own, num_prompt
        self._split()
