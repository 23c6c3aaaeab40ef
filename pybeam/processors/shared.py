"""Large parameters of processors, of which requests that have the same share one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from pybeam.backends.arrays import resized
from pybeam.backends.transfer import to_device


class SharedArrays(Protocol):
    """Parameters of slots in arrays that all slots share.

    Attributes:
        line: [S] int32, where those of every slot are, to be replaced by a longer one.
    """

    line: Tensor

    @property
    def tables(self) -> list[Tensor]:
        """The shared arrays as they are now."""

    def open(self, slots: Sequence[int], given: Sequence[Any]) -> None:
        """Let these slots use what `Processor.shared` has given."""

    def close(self, slots: Sequence[int]) -> None:
        """Let these slots use nothing."""


def arrays_for(own: Any, device: torch.device) -> SharedArrays:
    """Return what keeps the shared parameters of an algorithm's processor, and those of requests."""
    if isinstance(own, Tensor):
        return SharedLines(own, device)
    from pybeam.processors.automaton_pool import AutomatonPool

    return AutomatonPool(own, device)


class SharedLines:
    """A line on the device for every tensor that some slot uses.

    A slot uses its tensor until it is closed.

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

    @property
    def tables(self) -> list[Tensor]:
        return [self.table]

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

    def close(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._line_of.pop(slot, None)

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
