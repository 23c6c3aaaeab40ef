"""Neighbours in a chain that change few logits each: one launch of the backend's kernel does all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.transfer import to_device
from pybeam.contracts import EDIT_WORDS, EditRule
from pybeam.models.rows import Rows
from pybeam.processors.base import Stage


class OnDevice(Protocol):
    """A processor whose parameters are on the device."""

    @property
    def arrays(self) -> list[Tensor]:
        """Its parameters by slot, [S, ...] each."""


class Edits:
    """Processors of one stage that have an `EditRule` each. They are applied in their order.

    The kernel reads their parameters where they lie. It finds the addresses in `lines`.
    """

    def __init__(self, stage: Stage, device: torch.device, backend: Backend) -> None:
        self.stage = stage
        self._device, self._backend = device, backend
        self._members: list[tuple[OnDevice, EditRule]] = []
        self._built_from: list[tuple[int, ...]] = []
        self._lines = torch.zeros(0, EDIT_WORDS, dtype=torch.int64, device=device)

    def add(self, kept: OnDevice, rule: EditRule) -> None:
        """Append a processor."""
        self._members.append((kept, rule))

    def lines(self) -> Tensor:
        """[n, EDIT_WORDS] int64, written again if an array has moved.

        A step is not captured in that case, as the arrays are among its buffers.
        """
        arrays = [array for kept, _ in self._members for array in kept.arrays]
        built_from = [(array.data_ptr(), *array.shape) for array in arrays]
        if not len(self._lines) or built_from != self._built_from:
            lines = [_line(rule, kept.arrays) for kept, rule in self._members]
            self._lines = to_device(lines, torch.int64, self._device)
            self._built_from = built_from
        return self._lines

    def __call__(self, logits: Tensor, rows: Rows) -> Tensor:
        """Return the logits [R, V] after all processors; overwrites `logits`."""
        rules = [rule for _, rule in self._members]
        nothing = rows.position.new_empty(0, 0)
        reads_history = any(rule.reads_history for rule in rules)
        history = rows.history if reads_history else rows.position[:, None]
        has_prompt = rows.prompt is not None and any(rule.counts_start for rule in rules)
        prompt = rows.prompt if has_prompt and rows.prompt is not None else nothing
        places = rows.row_slot, rows.position, rows.prefix_length, rows.max_length
        logits = logits.contiguous()
        self._backend.edit_logits(logits, self.lines(), history, prompt, *places, rows.eos_ids)
        return logits


def _line(rule: EditRule, arrays: Sequence[Tensor]) -> list[int]:
    addresses = [array.data_ptr() for array in arrays]
    sizes = [size for array in arrays for size in array.shape[1:]]
    pairs = [[*map(int, given), 0, 0][:2] for given in (addresses, sizes, rule.numbers)]
    return [int(rule.edit), *pairs[0], *pairs[1], *pairs[2]]
