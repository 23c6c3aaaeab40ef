"""`LiveSources`: the sources that are being decoded, and the host's numbers about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from pybeam.backends.arrays import RUNNING
from pybeam.backends.transfer import to_device
from pybeam.engine.cuda_graphs import bucket
from pybeam.engine.schedule import Load
from pybeam.engine.source import Source
from pybeam.state.report import Report


class Growth(NamedTuple):
    """How many rows the live sources [L] may have, and how fast; see `Algorithm.growth`."""

    max_rows: np.ndarray
    factor: np.ndarray


class LiveSources:
    """The sources that are being decoded, in order of admission.

    Attributes:
        slots: [L] int32, their slots.
        slot: the same on the device.
        num_rows: [S], by slot: rows of each source, as the host last read them.
        max_bytes: bytes of keys and values that the sources may need.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_slot: dict[int, Source] = {}
        self._num_tokens = 0  # source tokens of all of them
        self.max_bytes = 0
        self.num_rows = np.zeros(0, dtype=np.int64)
        self._expansions = np.zeros(0, dtype=np.int64)  # by slot, as the host last read
        self._growth: Growth | None = None
        self._changed()

    def __len__(self) -> int:
        return len(self._by_slot)

    def __iter__(self) -> Iterator[Source]:
        return iter(self._by_slot.values())

    def get(self, slot: int) -> Source | None:
        """Return the source in that slot, if there is one."""
        return self._by_slot.get(slot)

    def reserve(self, num_slots: int) -> None:
        """Make room for that many slots."""
        missing = max(num_slots - len(self.num_rows), 0)
        self.num_rows = np.pad(self.num_rows, (0, missing))
        self._expansions = np.pad(self._expansions, (0, missing))

    def add(self, sources: Sequence[Source], num_rows: Sequence[int], step: int) -> None:
        """Add sources that begin at that step, each with so many rows."""
        for source, num in zip(sources, num_rows, strict=True):
            source.opened = step
            self._by_slot[source.slot] = source
            self.num_rows[source.slot] = num
            self._expansions[source.slot] = 0
            self._num_tokens += source.source_length
            self.max_bytes += source.max_bytes
        self._changed()

    def remove(self, slots: Sequence[int]) -> list[Source]:
        """Take the sources out of these slots."""
        sources = [self._by_slot.pop(slot) for slot in slots]
        for source in sources:
            self.num_rows[source.slot] = 0
            self._num_tokens -= source.source_length
            self.max_bytes -= source.max_bytes
        self._changed()
        return sources

    def read_report(self, slots: np.ndarray, report: Report) -> int:
        """Store the numbers of a report on these slots [A]. Returns the new expansions."""
        self.num_rows[slots] = np.where(report.reason == RUNNING, report.num_rows, 0)
        num_new = int((report.expansions - self._expansions[slots]).sum())
        self._expansions[slots] = report.expansions
        return num_new

    def load(self, step: int) -> Load:
        """Return how much is being decoded at this step, for the schedule."""
        return Load(len(self), self._num_tokens, int(self.num_rows.sum()), self._age(step))

    def max_tokens(self, step: int, num_more: int, newcomers: Sequence[Source] = ()) -> int:
        """Return how many tokens a row can have so many steps after this one, start token included."""
        longest, per_step = self._longest, self._tokens_per_step
        for source in newcomers:
            longest = max(longest, source.max_tokens)
            per_step = max(per_step, source.algorithm.tokens_per_step)
        return min((self._age(step) + num_more) * per_step, longest)

    def row_limit(self) -> int:
        """Return how many rows a step has room for if the host reads late. Beams rarely need more."""
        if self._growth is None:
            rules = [source.algorithm for source in self]
            self._growth = Growth(
                np.array([rule.max_rows for rule in rules]),
                np.array([rule.growth for rule in rules]),
            )
        widest, factor = self._growth
        expected = np.minimum(widest, self.num_rows[self.slots] * factor).sum()
        # the widest beam must fit, because it would wait for ever otherwise
        return bucket(int(max(expected, widest.max())))

    def _age(self, step: int) -> int:
        oldest = next(iter(self), None)
        return 0 if oldest is None else step - oldest.opened

    def _changed(self) -> None:
        self.slots = np.fromiter(self._by_slot, dtype=np.int32)
        self.slot = to_device(self.slots, torch.int32, self._device)
        self._longest = max((source.max_tokens for source in self), default=0)
        self._tokens_per_step = max(
            (source.algorithm.tokens_per_step for source in self), default=0
        )
        self._growth = None
