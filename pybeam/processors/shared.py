"""`SharedLines`: large parameters of processors, of which requests that have the same share one copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends.arrays import resized
from pybeam.backends.transfer import to_device


class SharedLines:
    """A line on the device for every tensor that some slot uses.

    A slot uses its tensor until it is opened again.

    Attributes:
        table: [T, n], the tensors.
        line: [S] int32, the line of every slot, to be replaced by a longer one; line 0 is the algorithm's own
            tensor.
    """

    def __init__(self, own: Tensor, device: torch.device) -> None:
        self._device = device
        self.table = to_device(own, own.dtype, device)[None]
        self.line = torch.zeros(0, dtype=torch.int32, device=device)
        self._held = [own]  # of every line
        self._line_of: dict[int, int] = {}  # by slot

    def open(self, slots: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Give these slots the lines of their tensors."""
        for slot in slots:
            self._line_of.pop(slot, None)
        lines = []
        for slot, tensor in zip(slots, tensors, strict=True):
            self._line_of[slot] = self._find(tensor)
            lines.append(self._line_of[slot])
        place = to_device(slots, torch.long, self._device)
        self.line[place] = to_device(lines, torch.int32, self._device)

    def _find(self, tensor: Tensor) -> int:
        for line, held in enumerate(self._held):
            if held is tensor:
                return line
        used = {0, *self._line_of.values()}
        line = next(i for i in range(len(self._held) + 1) if i not in used)
        if line == len(self._held):
            self._held.append(tensor)
            self.table = resized(self.table, (2 * line, 0))
        self._held[line] = tensor
        self.table[line] = to_device(tensor, tensor.dtype, self._device)
        return line
