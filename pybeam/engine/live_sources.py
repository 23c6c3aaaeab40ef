"""`LiveSources`: the sources that are being decoded, and the host's numbers about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import NULL_SLOT, RUNNING
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
        slots: their slots.
        num_rows: rows of all of them, as the host last read.
        max_bytes: bytes of keys and values that the sources may need.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_slot: dict[int, Source] = {}
        self._num_tokens = 0  # source tokens of all of them
        self.max_bytes = 0
        self.num_rows = 0
        # lists, because one number of a NumPy array costs more than many of a list
        self._rows_of: list[int] = []  # by slot
        self._expansions_of: list[int] = []  # by slot
        self._slot: Tensor | None = None
        self._padded: Tensor | None = None
        self._growth: Growth | None = None
        self._opened: int | None = None  # the step at which the oldest was admitted
        self._begun: int | None = None  # the same, less the steps that a source has been saved
        self._changed()

    @property
    def slot(self) -> Tensor:
        """The slots [L] int32 on the device."""
        if self._slot is None:
            self._slot = to_device(self.slots, torch.int32, self._device)
        return self._slot

    def padded_slot(self, size: int) -> Tensor:
        """The slots [size] int32 on the device, null slots behind those of the sources."""
        if self._padded is None or self._padded.numel() != size:
            padded = np.full(size, NULL_SLOT, dtype=np.int32)
            padded[: len(self.slots)] = self.slots
            self._padded = to_device(padded, torch.int32, self._device)
        return self._padded

    def __len__(self) -> int:
        return len(self._by_slot)

    def __iter__(self) -> Iterator[Source]:
        return iter(self._by_slot.values())

    def get(self, slot: int) -> Source | None:
        """Return the source in that slot, if there is one."""
        return self._by_slot.get(slot)

    def reserve(self, num_slots: int) -> None:
        """Make room for that many slots."""
        missing = [0] * (num_slots - len(self._rows_of))
        self._rows_of += missing
        self._expansions_of += missing

    def add(self, sources: Sequence[Source], num_rows: Sequence[int], step: int) -> None:
        """Add sources that begin at that step, each with so many rows."""
        for source, num in zip(sources, num_rows, strict=True):
            source.opened = step
            self._by_slot[source.slot] = source
            self._set_rows(source.slot, num)
            self._expansions_of[source.slot] = 0
            self._num_tokens += source.source_length
            self.max_bytes += source.max_bytes
        self._changed()

    def remove(self, slots: Sequence[int]) -> list[Source]:
        """Take the sources out of these slots."""
        sources = [self._by_slot.pop(slot) for slot in slots]
        for source in sources:
            self._set_rows(source.slot, 0)
            self._num_tokens -= source.source_length
            self.max_bytes -= source.max_bytes
        self._changed()
        return sources

    def read_report(self, slots: Sequence[int], numbers: list[int]) -> tuple[int, list[int]]:
        """Store the numbers of a report on these slots.

        Returns the new expansions, and the places in `slots` of live sources that are done.
        """
        num_new, done = 0, []
        rows_of = self._rows_of
        reasons, num_rows, expansions = Report.columns(numbers, "reason", "num_rows", "expansions")
        for i, slot in enumerate(slots):
            num_new += expansions[i] - self._expansions_of[slot]
            self._expansions_of[slot] = expansions[i]
            if reasons[i] == RUNNING:
                # beams are full most of the time
                if num_rows[i] != rows_of[slot]:
                    self._set_rows(slot, num_rows[i])
                continue
            self._set_rows(slot, 0)
            # a report that is read late still names sources that left after the step before
            if slot in self._by_slot:
                done.append(i)
        return num_new, done

    def _set_rows(self, slot: int, num: int) -> None:
        self.num_rows += num - self._rows_of[slot]
        self._rows_of[slot] = num

    def are_forced(self, step: int, reach: int | None) -> bool:
        """Whether the next token of every row is given at this step, and nobody reads its logits.

        Every source has moved in every step. `reach` is `ProcessorChain.prefix_reach`.
        """
        return reach is not None and all(source.num_forced(step) > reach for source in self)

    def load(self, step: int) -> Load:
        """Return how much is being decoded at this step, for the schedule."""
        return Load(len(self), self._num_tokens, self.num_rows, self._age(step))

    def max_tokens(self, step: int, num_more: int, newcomers: Sequence[Source] = ()) -> int:
        """Return how many tokens a row can have so many steps after this one, start token included."""
        longest, per_step = self._longest, self._tokens_per_step
        num_before = self._most_before(step)
        for source in newcomers:
            longest = max(longest, source.max_tokens)
            per_step = max(per_step, source.algorithm.tokens_per_step)
            num_before = max(num_before, source.num_read)
        return min((num_before + num_more) * per_step, longest)

    def row_limit(self) -> int:
        """Return how many rows a step has room for if the host reads late. Beams rarely need more."""
        if self._growth is None:
            rules = [source.algorithm for source in self]
            self._growth = Growth(
                np.array([rule.max_rows for rule in rules]),
                np.array([rule.growth for rule in rules]),
            )
        widest, factor = self._growth
        num_rows = np.array([self._rows_of[slot] for slot in self.slots])
        expected = np.minimum(widest, num_rows * factor).sum()
        # the widest beam must fit, because it would wait for ever otherwise
        return bucket(int(max(expected, widest.max())))

    def _age(self, step: int) -> int:
        return 0 if self._opened is None else step - self._opened

    def _most_before(self, step: int) -> int:
        """Return the most steps that a row has behind it, with those that reading at once has saved."""
        return 0 if self._begun is None else step - self._begun

    def _changed(self) -> None:
        self.slots = tuple(self._by_slot)
        self._slot = self._padded = None
        self._longest = max((source.max_tokens for source in self), default=0)
        self._tokens_per_step = max(
            (source.algorithm.tokens_per_step for source in self), default=0
        )
        oldest = next(iter(self), None)
        self._opened = None if oldest is None else oldest.opened
        self._begun = min((source.opened - source.num_read for source in self), default=None)
        self._growth = None
