"""Keep prompts and generated tokens in one pool of cells, for all models whose source is a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.arrays import resized
from pybeam.backends.transfer import to_device
from pybeam.contracts import Paths
from pybeam.kvcache.pools import KeyValuePool, SourceCells, cells_of_pages, forget_pages
from pybeam.models.cells import Cells
from pybeam.models.rows import Rows


class Visible(NamedTuple):
    """The prompts and tokens that the rows of a step see."""

    cells: Cells  # prompts first
    longest: int | None  # the most positions that one source has; None: not known on the host


class PromptPool(KeyValuePool):
    """A pool with two ends: the token tree takes cells from the front, prompts take them from the back.

    One attention reads both, so they must be in one pool.

    Attributes:
        position: [cells, 1] int32, the position of the token in each cell, where somebody has written it.
    """

    num_own = 0
    num_prompt = 0

    # the parameters are those of any pool
    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(num_layers, num_heads, head_size, dtype, device)
        self.position = torch.zeros(0, 1, dtype=torch.int32, device=device)

    @property
    def reads_sizes(self) -> bool:
        """Whether a step may read sizes back. On a GPU it would have to wait for them."""
        return self.position.device.type == "cpu"

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

    def forget_pages(self, pages: Sequence[int]) -> None:
        forget_pages([*self.both, self.position], pages, from_behind=True)

    def visible(self, rows: Rows, position: Tensor, prompt: SourceCells) -> Visible:
        """Return the cells that the rows' sources attend over.

        Args:
            rows: R rows of A sources.
            position: [R] int32, the rows' positions, prompts counted.
            prompt: the prompts' cells.
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
        return Visible(cells, longest)

    def _resize(self, num_own: int, num_prompt: int) -> None:
        num_own, num_prompt = max(num_own, self.num_own), max(num_prompt, self.num_prompt)
        if (num_own, num_prompt) == (self.num_own, self.num_prompt):
            return
        num_cells, at = num_own + num_prompt, self.position
        front, back = slice(self.num_own), slice(self.num_own, self.num_own + self.num_prompt)
        moves = [(front, front), (back, slice(num_cells - self.num_prompt, num_cells))]
        self._replace(num_cells, moves)
        self.position = at.new_zeros(num_cells, 1)
        for before, after in moves:
            self.position[after] = at[before]
        self.num_own, self.num_prompt = num_own, num_prompt


class Prompts:
    """The prompts of a session: their keys and values, kept once per source, and their last tokens.

    A prompt's last token is the row that every hypothesis starts from, in place of the start token. So the
    cells of a prompt hold all tokens but the last.

    Attributes:
        pool: keys and values of prompts and of the tokens that continue them.
        cells: the prompts' cells.
        needs_positions: whether a layer of the model depends on distances.
    """

    def __init__(self, pool: PromptPool, cells: SourceCells, *, needs_positions: bool) -> None:
        """Keep no prompt yet. The arguments are the attributes."""
        self.pool, self.cells, self.needs_positions = pool, cells, needs_positions
        self._last = torch.zeros(0, dtype=torch.int32, device=cells.length.device)  # [S]

    def reserve(self, num_slots: int, num_cells: int) -> None:
        """Make room for that many slots, and cells of the token tree."""
        self.cells.reserve(num_slots)
        self.pool.grow(num_cells)
        self._last = resized(self._last, (num_slots,))

    def release(self, slots: Sequence[int]) -> None:
        """Let the prompts of these slots go."""
        self.pool.forget_pages(self.cells.release(slots))

    def buffers(self) -> Sequence[Tensor]:
        """All tensors that are kept between steps."""
        prompt = self.cells.cell, self.cells.length, self._last
        return self.pool.both[0], self.pool.position, *prompt

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        """See `Session.max_bytes`."""
        return (num_cells + cells_of_pages(source_length)) * self.pool.cell_bytes

    def keep_last(self, prompts: Sequence[Tensor], slots: Sequence[int]) -> None:
        """Store the last tokens of these prompts."""
        device = self._last.device
        last = to_device([int(prompt[-1]) for prompt in prompts], torch.int32, device)
        self._last.index_copy_(0, to_device(slots, torch.long, device), last)

    def begin(self, backend: Backend, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the tokens and positions [R] int32 of rows, where the prompts come first."""
        self.pool.forget_unseen(rows.tree, rows.cell, self.pool.position)
        row_slot = rows.row_slot.long()
        token = torch.where(rows.position == 0, self._last[row_slot], rows.token)
        position = rows.position + self.cells.length[row_slot]
        self.place(backend, rows.cell, position)
        return token, position

    def place(self, backend: Backend, cell: Tensor, position: Tensor) -> None:
        """Store the positions [n] int32 of the tokens in these cells [n], if a layer asks for them."""
        if self.needs_positions:
            backend.scatter_rows(self.pool.position, cell, position[:, None].contiguous())

    def visible(self, rows: Rows, position: Tensor) -> Visible:
        """Return the cells that rows at these positions [R] attend over."""
        return self.pool.visible(rows, position, self.cells)
