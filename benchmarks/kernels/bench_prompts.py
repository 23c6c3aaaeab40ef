"""Cells of prompts put before those of trees, and rows behind prompts, beside the same in torch."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from benchmarks.kernels.kernel import Case, Cases, Kernel, cases, times
from pybeam import backends
from pybeam.inspect.work import Work
from pybeam.kvcache.pools import SourceCells, cells_of_pages
from pybeam.models.cells import Cells
from pybeam.models.prompts import Begun, PromptPool, Prompts

# tokens of each hypothesis so far, and that it may have
TOKENS, MOST_TOKENS = 16, 64


class PrependPrompts(Kernel):
    """Beams that share as many nodes as they have tokens, behind prompts of the same length."""

    op = "prepend_prompts"
    label = "{} beams of {}, prompts of {}"
    cases = Cases(
        cuda=cases(["int32"], [(64, 5, 200), (1, 5, 200), (64, 50, 200), (64, 5, 8000)]),
        tiny=[Case("int32", (2, 3, 18)), Case("int32", (1, 2, 0))],
    )

    def __init__(
        self, device: torch.device, dtype: str, num_beams: int, width: int, num_tokens: int
    ) -> None:
        num_slots, num_rows, num_live = num_beams + 1, num_beams * width, TOKENS + width - 1
        most, room = width * MOST_TOKENS, cells_of_pages(num_tokens)

        def upwards(number: int) -> Tensor:
            return torch.arange(number, dtype=torch.int32, device=device)

        pool, cells = PromptPool(1, 1, 1, torch.float32, device), SourceCells(device)
        pool.grow(num_slots * most)
        pool.grow_prompts(num_slots * room)
        prompts = Prompts(pool, cells, needs_positions=False)
        prompts.reserve(num_slots, 0)
        cells.cell = upwards(num_slots * room).view(num_slots, room)
        cells.length = torch.full_like(upwards(num_slots), num_tokens)
        slot, entry = upwards(num_beams) + 1, upwards(width).repeat(num_beams)
        rows = SimpleNamespace(
            # where nothing is poisoned nobody looks at it
            tree=SimpleNamespace(is_forgotten=lambda cell: cell.new_zeros(0, dtype=torch.bool)),
            token=entry + 4,
            position=torch.full_like(entry, TOKENS - 1),
            row_slot=slot.repeat_interleave(width),
            cell=upwards(num_rows),
        )
        own = Cells(
            width * upwards(num_beams + 1),
            slot,
            upwards(num_slots * most).view(num_slots, most),
            torch.full_like(cells.length, num_live),
            torch.ones(num_slots, most, 1, dtype=torch.int64, device=device),
            entry,
        )
        self.copies = [(prompts, rows, own, torch.zeros_like(cells.length))] * 10
        # a cell is read and written with its mask, which a prompt's has not yet
        lists = num_beams * ((4 + 4 + 8) * num_tokens + (4 + 4 + 16) * num_live)
        self.work = Work(lists + 7 * 4 * num_rows, 0)

    def ours(
        self,
        backend: backends.Backend,
        prompts: Prompts,
        rows: SimpleNamespace,
        own: Cells,
        first_row: Tensor,
    ) -> Begun:
        return prompts.begin(backend, rows, own, first_row)  # type: ignore[arg-type]

    def result(self, name: str) -> list[Tensor]:
        """Without the places that nobody may read."""
        *given, cells = self.ours(backends.load(name), *self.copies[0])
        line, num_cells = cells.slot.long(), cells.num_cells[cells.slot.long()]
        is_used = torch.arange(cells.cell.shape[1], device=line.device) < num_cells[:, None]
        return [*given, num_cells, cells.cell[line][is_used], cells.mask[line][is_used]]

    def in_torch(
        self, prompts: Prompts, rows: SimpleNamespace, own: Cells, first_row: Tensor
    ) -> tuple[Tensor, ...]:
        begun = prompts.begun_in_torch(rows, own, first_row)  # type: ignore[arg-type]
        assert begun.cells.mask is not None
        return *begun[:3], begun.cells.cell, begun.cells.num_cells, begun.cells.mask


bench_prepend_prompts = times(PrependPrompts)
