"""Neighbours in a chain that change few logits each: one call of the backend's kernel does all of them."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.contracts import EditRule
from pybeam.models.rows import Rows
from pybeam.processors.base import Stage


class OnDevice(Protocol):
    """A processor whose parameters are on the device."""

    @property
    def arrays(self) -> list[Tensor]:
        """Its parameters by slot, [S, ...] each."""


class Edits:
    """Processors of one stage that have an `EditRule` each. They are applied in their order.

    The kernel reads their parameters where they lie, see `Backend.edit_list`.
    """

    def __init__(self, stage: Stage, device: torch.device, backend: Backend) -> None:
        self.stage = stage
        self._device, self._backend = device, backend
        self._members: list[tuple[OnDevice, EditRule]] = []
        self._built_from: list[tuple[int, ...]] | None = None
        self._told: Any = None

    def add(self, kept: OnDevice, rule: EditRule) -> None:
        """Append a processor."""
        self._members.append((kept, rule))

    def told(self) -> Any:
        """Return what the backend is told of these edits, made again if an array has moved.

        A step is not captured in that case, as the arrays are among its buffers.
        """
        arrays = [kept.arrays for kept, _ in self._members]
        built_from = [(array.data_ptr(), *array.shape) for own in arrays for array in own]
        if built_from != self._built_from:
            assert self._backend.edit_list is not None
            rules = [rule for _, rule in self._members]
            self._told = self._backend.edit_list(rules, arrays, self._device)
            self._built_from = built_from
        return self._told

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
        self._backend.edit_logits(logits, self.told(), history, prompt, *places, rows.eos_ids)
        return logits
