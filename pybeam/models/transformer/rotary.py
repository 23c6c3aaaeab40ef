"""Tables of cosines and sines by which rotary embeddings turn queries and keys."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from pybeam.models.transformer.frequencies import Frequencies


@dataclass
class _Part:
    """Neighbouring rows of a table, of which the first `num_known` are computed."""

    frequency: Tensor  # [D / 2]
    first: int
    size: int
    num_known: int = 0


class RotaryTable:
    """Cosines and sines of all positions. Rows are computed when they are first needed.

    Long contexts have tables of many megabytes, of which most calls read little. Rows that nobody has
    needed take no memory on a CPU.

    Where long inputs have frequencies of their own, rows for them follow the others: position p of a long
    input has row ``long_row + p``.

    Args:
        frequencies: what is turned, how fast.
        num_positions: positions of the model.
        device: where the table is.

    Attributes:
        cos, sin: [rows, D / 2] float32, of the angles ``position * frequency``, times a factor.
        long_row: see above; None: all inputs have the same frequencies.
    """

    def __init__(self, frequencies: Frequencies, num_positions: int, device: torch.device) -> None:
        short, self._factor, long, self.long_row = frequencies
        self._parts = [_Part(short.to(device), 0, self.long_row or num_positions)]
        if long is not None and self.long_row is not None:
            self._parts.append(_Part(long.to(device), self.long_row, num_positions))
        shape = sum(part.size for part in self._parts), short.numel()
        self.cos, self.sin = torch.empty(shape, device=device), torch.empty(shape, device=device)
        self._lock = threading.Lock()

    def fill(self, num_positions: int) -> None:
        """Compute the rows of the first `num_positions` positions, if they are not known."""
        short, *long = self._parts
        self._fill(short, num_positions)
        for part in long:
            if num_positions > short.size:
                self._fill(part, num_positions)

    def _fill(self, part: _Part, num_positions: int) -> None:
        if min(num_positions, part.size) <= part.num_known:
            return
        with self._lock:
            # twice as many, so that a growing output asks seldom
            known, num = part.num_known, min(2 * num_positions, part.size)
            if num <= known:
                # another thread has computed more in between
                return
            position = torch.arange(known, num, device=self.cos.device)
            # as the models were trained: angles are rounded to float32
            angle = position.float()[:, None] * part.frequency  # [n, D / 2]
            rows = slice(part.first + known, part.first + num)
            torch.mul(angle.cos(), self._factor, out=self.cos[rows])
            torch.mul(angle.sin(), self._factor, out=self.sin[rows])
            part.num_known = num
