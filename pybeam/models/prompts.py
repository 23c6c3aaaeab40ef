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
from pybeam.kvcache.pools import KeyValuePool, SourceCells, cells_of_pages, forget_pages
from pybeam.models.cells import Cells
from pybeam.models.plain_cells import of_sources
from pybeam.models.rows import Rows


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

    def before(self, own: Cells, prompt: SourceCells) -> Cells:
        """Return the cells of prompts, and behind them `own` cells of the rows' tree, by source."""
        slot = own.slot.long()  # [A]
        from_prompt = prompt.length[slot]
        num_prompt, num_live = prompt.cell.shape[1], own.cell.shape[1]
        if self.reads_sizes and slot.numel():
            num_prompt, num_live = int(from_prompt.max()), max(1, int(own.num_cells[slot].max()))
        own = of_sources(own, num_live)
        place = torch.arange(num_prompt + num_live, device=slot.device) - from_prompt[:, None]
        is_own = place >= 0  # [A, U]
        column = place.clamp(0, num_live - 1)
        prompt_cell = F.pad(self.of_prompts(prompt.cell[slot][:, :num_prompt]), (0, num_live))
        cell = torch.where(is_own, own.cell.gather(1, column), prompt_cell)
        own = own._replace(cell=cell, num_cells=from_prompt + own.num_cells)
        if own.paths is not None:
            return own._replace(paths=own.paths._replace(num_shared=from_prompt))
        assert own.mask is not None
        mask = own.mask.gather(1, column[..., None].expand(-1, -1, own.mask.shape[2]))
        # all rows see the prompt
        return own._replace(mask=mask.masked_fill(~is_own[..., None], -1))  # [A, U, W]

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


class Begun(NamedTuple):
    """The R rows of a step as a model is given them, where the prompts come first.

    `cells` hold those of prompts, and behind them those of the tree. Places behind the last one hold
    anything, and so do lines of slots that do not move.
    """

    token: Tensor  # [R] int32
    position: Tensor  # [R] int32, from the beginning of the prompt
    place: Tensor  # [R] int32, of the position in a table
    cells: Cells


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

    def begin(
        self, backend: Backend, rows: Rows, own: Cells, first_row: Tensor | None = None
    ) -> Begun:
        """Return rows as a model is given them, where the prompts come first.

        Positions are stored, if a layer asks for them.

        Args:
            backend: the module that computes it.
            rows: the rows.
            own: the cells of their tree that they see.
            first_row: [S] int32, the row of position 0 in a table of positions; None: 0.
        """
        pool, prepend = self.pool, backend.prepend_prompts
        pool.forget_unseen(rows.tree, rows.cell, pool.position)
        if prepend is None:
            begun = self.begun_in_torch(rows, own, first_row)
            self.place(backend, rows.cell, begun.position)
            return begun
        prompts = self.cells.cell, self.cells.length, self._last
        at = pool.position if self.needs_positions else None
        return Begun(*prepend(rows, own, prompts, pool.num_cells, first_row, at))

    def begun_in_torch(self, rows: Rows, own: Cells, first_row: Tensor | None) -> Begun:
        """Return what `begin` does, in plain torch. It stores no positions."""
        row_slot = rows.row_slot.long()
        token = torch.where(rows.position == 0, self._last[row_slot], rows.token)
        position = rows.position + self.cells.length[row_slot]
        place = position if first_row is None else position + first_row[row_slot]
        return Begun(token, position, place, self.pool.before(own, self.cells))

    def place(self, backend: Backend, cell: Tensor, position: Tensor) -> None:
        """Store the positions [n] int32 of the tokens in these cells [n], if a layer asks for them."""
        if self.needs_positions:
            backend.scatter_rows(self.pool.position, cell, position[:, None].contiguous())

    def given(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return what a program puts before rows: the cells of prompts, and their last tokens [S]."""
        self.pool.forget_unseen(rows.tree, rows.cell, self.pool.position)
        return *Cells.of_encoder(rows, self.cells).given, self._last
