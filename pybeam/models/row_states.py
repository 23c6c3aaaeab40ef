"""The recurrent state of every row, which follows the hypothesis of the row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends import Backend, poison
from pybeam.backends.arrays import resized
from pybeam.backends.transfer import to_device
from pybeam.models.rows import Rows


class RowStates:
    """States of one shape for every entry: before its last token, and after that token.

    Both are kept, so that a step may be done again.

    Args:
        shape: of a state.
        dtype, device: of the numbers.
        backend: the module that moves them.

    Attributes:
        memory: [2, S, K, *shape].
    """

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, backend: Backend
    ) -> None:
        self.memory = torch.zeros(2, 0, 0, *shape, dtype=dtype, device=device)
        self._backend = backend

    def reserve(self, num_slots: int, width: int) -> None:
        """Make room for so many slots, and rows in each."""
        self.memory = resized(self.memory, (2, num_slots, width, *self.memory.shape[3:]))

    def begin(self, slots: Sequence[int]) -> Tensor:
        """Set the states that hypotheses of these slots begin with to zero; return those of all slots."""
        first = self.memory[0, :, 0]  # [S, *shape]
        first[to_device(slots, torch.long, self.memory.device)] = 0.0
        return first

    def read(self, rows: Rows) -> Tensor:
        """Return the states [R, *shape] before the last tokens of these rows."""
        return self.memory[0].flatten(0, 1).index_select(0, self._entry(rows))

    def write(self, rows: Rows, states: Tensor) -> None:
        """Keep the states [R, *shape] after the last tokens of these rows."""
        # padding rows have no state
        target = torch.where(rows.cell < 0, -1, self._entry(rows))
        self._backend.scatter_rows(self.memory[1].flatten(0, 1), target, states)

    def advance(self, source: Tensor, target: Tensor) -> None:
        """Move rows, as `Session.advance` says."""
        flat = self.memory.flatten(0, 2)  # [2 S K, *shape]
        # continue from the states after the last token, which are the second half
        source = torch.where(source >= 0, source + flat.shape[0] // 2, -1)
        self._backend.gather_rows([flat], source, target)

    def forget(self, slots: Sequence[int]) -> None:
        """Forget the states of these slots."""
        poison.forget(self.memory.select(1, slot) for slot in slots)

    def _entry(self, rows: Rows) -> Tensor:
        """[R], which of the entries of all slots each row is."""
        return rows.row_slot * self.memory.shape[2] + rows.entry
