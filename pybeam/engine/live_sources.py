"""`LiveSources`: the sources that are being decoded, and the host's numbers about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import NO_LIMIT, NULL_SLOT, RUNNING
from pybeam.backends.transfer import to_device
from pybeam.engine.schedule import LoadLevel
from pybeam.engine.source import Source
from pybeam.state.report import column
from pybeam.state.step import StepPlan

REASON, NUM_ROWS, EXPANSIONS = column("reason"), column("num_rows"), column("expansions")


class RunningMax:
    """The largest of numbers that come and go.

    Attributes:
        number: the largest; None: there is none.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._counts: dict[int, int] = {}  # by number

    def add(self, number: int) -> None:
        self._counts[number] = self._counts.get(number, 0) + 1
        self.number = number if self.number is None else max(number, self.number)

    def remove(self, number: int) -> None:
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._counts[number]
            self.number = max(self._counts, default=None)


class LiveSources:
    """The sources that are being decoded, in order of admission.

    Attributes:
        slots: their slots.
        num_rows: rows of all of them, as the host last read.
        num_watched: sources that are told something before their results.
        max_bytes: bytes of keys and values that the sources may need.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_slot: dict[int, Source] = {}
        self._num_tokens = 0  # source tokens of all of them
        self.max_bytes = 0
        self.num_rows = self.num_watched = 0
        # lists, because one number of a NumPy array costs more than many of a list
        self._rows_of: list[int] = []  # by slot
        self._expansions_of: list[int] = []  # by slot
        # by slot, the most rows and `Algorithm.growth`, and the rows that there may be after a step
        self._growth_of: list[tuple[int, int]] = []
        self._expected_of: list[int] = []
        self._num_expected = self._limit = 0
        self._slot: Tensor | None = None
        self._padded: Tensor | None = None
        self._most_rows, self._longest = RunningMax(), RunningMax()
        self._tokens_per_step = RunningMax()
        # steps that a source has been saved, less the step at which it was admitted
        self._lead = RunningMax()
        # less the step from which on not all of a source's tokens are given
        self._given = RunningMax()
        self._changed()

    @property
    def slot(self) -> Tensor:
        """The slots [L] int32 on the device."""
        if self._slot is None:
            self._slot = to_device(self.slots, torch.int32, self._device)
        return self._slot

    def padded_slot(self, size: int) -> Tensor:
        """The slots [size] int32 on the host for a captured step, null slots behind those of the sources."""
        if self._padded is None or self._padded.numel() != size:
            # only a GPU has graphs
            from pybeam.backends.pinned import packed, padded

            slots = padded(np.array(self.slots), size, fill=NULL_SLOT)
            self._padded = packed([slots], self._device)[:size]
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
        self._expected_of += missing
        self._growth_of += [(0, 0)] * len(missing)

    def add(self, sources: Sequence[Source], num_rows: Sequence[int], step: int) -> None:
        """Add sources that begin at that step, each with so many rows."""
        for source, num in zip(sources, num_rows, strict=True):
            source.opened = step
            slot, algorithm = source.slot, source.algorithm
            self._by_slot[slot] = source
            self._growth_of[slot] = algorithm.max_rows, algorithm.growth
            self._set_rows(slot, num)
            self._expansions_of[slot] = 0
            for most, number in self._numbers(source):
                most.add(number)
            self._num_tokens += source.source_length
            self.max_bytes += source.max_bytes
            self.num_watched += source.watch > 0
        self._changed()

    def remove(self, slots: Sequence[int]) -> list[Source]:
        """Take the sources out of these slots."""
        sources = [self._by_slot.pop(slot) for slot in slots]
        for source in sources:
            self._set_rows(source.slot, 0)
            for most, number in self._numbers(source):
                most.remove(number)
            self._num_tokens -= source.source_length
            self.max_bytes -= source.max_bytes
            self.num_watched -= source.watch > 0
        self._changed()
        return sources

    def read_report(self, slots: Sequence[int], numbers: list[int]) -> tuple[int, list[int]]:
        """Store the numbers of a report on these slots.

        Returns the new expansions, and the places in `slots` of live sources that are done.
        """
        num_new, done = 0, []
        rows_of = self._rows_of
        reasons, num_rows, expansions = numbers[REASON], numbers[NUM_ROWS], numbers[EXPANSIONS]
        for i, slot in enumerate(slots):
            num_new += expansions[i] - self._expansions_of[slot]
            self._expansions_of[slot] = expansions[i]
            if reasons[i] == RUNNING:
                # beams are full most of the time
                if num_rows[i] != rows_of[slot]:
                    self._set_rows(slot, num_rows[i])
                continue
            # a report that is read late still names sources that left after the step before
            if slot in self._by_slot:
                done.append(i)
        return num_new, done

    def _numbers(self, source: Source) -> tuple[tuple[RunningMax, int], ...]:
        """The numbers of a source of which only the largest of all sources counts."""
        algorithm = source.algorithm
        return (
            (self._most_rows, algorithm.max_rows),
            (self._longest, source.max_tokens),
            (self._tokens_per_step, algorithm.tokens_per_step),
            (self._lead, source.num_read - source.opened),
            (self._given, source.num_read - source.num_given - source.opened),
        )

    def _set_rows(self, slot: int, num: int) -> None:
        most, factor = self._growth_of[slot]
        expected = min(most, num * factor)
        self.num_rows += num - self._rows_of[slot]
        self._num_expected += expected - self._expected_of[slot]
        self._rows_of[slot], self._expected_of[slot] = num, expected

    def plan(self, step: int, reach: int | None) -> StepPlan:
        """Return the step of all sources. They have all moved in every step before this one.

        `reach` is `ProcessorChain.prefix_reach`.
        """
        last_given = -(self._given.number or 0)
        is_forced = reach is not None and last_given - step > reach
        return StepPlan(self.slot, self.num_rows, self.max_tokens(step, 1), is_forced)

    def load(self, step: int) -> LoadLevel:
        """Return how much is being decoded at this step, for the schedule."""
        return LoadLevel(len(self), self._num_tokens, self.num_rows, self._age(step))

    def max_tokens(self, step: int, num_more: int, newcomers: Sequence[Source] = ()) -> int:
        """Return how many tokens a row can have so many steps after this one, start token included."""
        longest, per_step = self._longest.number or 0, self._tokens_per_step.number or 0
        num_before = self._most_before(step)
        for source in newcomers:
            longest = max(longest, source.max_tokens)
            per_step = max(per_step, source.algorithm.tokens_per_step)
            num_before = max(num_before, source.num_read)
        return min((num_before + num_more) * per_step, longest)

    def steps_within(self, step: int, length: int) -> int:
        """Return how many steps from this one on need no room for more tokens than `length`."""
        longest, per_step = self._longest.number or 0, self._tokens_per_step.number or 1
        if longest <= length:
            return NO_LIMIT
        # the start token counts as a step
        return length // per_step - self._most_before(step) - 1

    def row_limit(self, step: int, is_last: bool) -> int:
        """Return how many rows that step has room for if the host reads late. Beams rarely need more.

        `is_last`: no other source will come.
        """
        from pybeam.engine.buckets import bucket, last_bucket

        # a beam grows when it has moved
        new = takewhile(lambda source: source.opened == step, reversed(self._by_slot.values()))
        missing = sum(self._expected_of[own.slot] - self._rows_of[own.slot] for own in new)
        # the widest beam must fit, because it would wait for ever otherwise
        most = max(self._num_expected - missing, self._most_rows.number or 0)
        self._limit = last_bucket(most, self._limit) if is_last else bucket(most)
        return self._limit

    def _age(self, step: int) -> int:
        oldest = next(iter(self), None)
        return 0 if oldest is None else step - oldest.opened

    def _most_before(self, step: int) -> int:
        """Return the most steps that a row has behind it, with those that reading at once has saved."""
        return 0 if self._lead.number is None else step + self._lead.number

    def _changed(self) -> None:
        self.slots = tuple(self._by_slot)
        self._slot = self._padded = None
