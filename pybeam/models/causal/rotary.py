"""Tables of cosines and sines by which rotary embeddings turn queries and keys."""

from __future__ import annotations

import threading

import torch
from torch import Tensor


class RotaryTable:
    """Cosines and sines of all positions. Rows are computed when they are first needed.

    Long contexts have tables of many megabytes, of which most calls read little. Rows that nobody has
    needed take no memory on a CPU.

    Attributes:
        cos, sin: [positions, D / 2] float32, of the angles ``position * frequency``, times a factor.
    """

    def __init__(
        self,
        frequency: Tensor,
        num_positions: int,
        factor: float = 1.0,
        device: torch.device | None = None,
    ) -> None:
        """Make an empty table.

        Args:
            frequency: [D / 2] float32, radians per position.
            num_positions: the number of rows.
            factor: what cosines and sines are multiplied by.
            device: where the table is.
        """
        self._frequency, self._factor = frequency.to(device), factor
        shape = num_positions, frequency.numel()
        self.cos = torch.empty(shape, device=device)
        self.sin = torch.empty(shape, device=device)
        self._num_known = 0
        self._lock = threading.Lock()

    def fill(self, num_positions: int) -> None:
        """Make sure that the first `num_positions` rows are known."""
        if num_positions <= self._num_known:
            return
        with self._lock:
            first, last = self._num_known, min(self.cos.shape[0], 2 * num_positions)
            position = torch.arange(first, last, device=self.cos.device)
            # as the models were trained: angles are rounded to float32
            angle = position.float()[:, None] * self._frequency  # [n, D / 2]
            torch.mul(angle.cos(), self._factor, out=self.cos[first:last])
            torch.mul(angle.sin(), self._factor, out=self.sin[first:last])
            self._num_known = max(last, num_positions)
