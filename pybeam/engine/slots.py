"""`Slots`: the lines of all arrays, one for each source that is encoded or decoded."""

from __future__ import annotations

from collections.abc import Iterable

from pybeam.backends.arrays import NULL_SLOT

# Slots beside those of the sources that move: of sources that are encoded ahead, and of those that a pending
# report still names.
SPARE_SLOTS = 32


class Slots:
    """The slots that sources take and give back.

    Attributes:
        num: how many there are, the null slot included.
        free: those that no source has.
        quarantined: those that are empty, but that a pending report may still name.
    """

    def __init__(self) -> None:
        self.num = NULL_SLOT + 1
        self.free: list[int] = []
        self.quarantined: list[int] = []

    def take(self, num: int, num_expected: int = 0) -> list[int]:
        """Take free slots. If there are too few, more are made, enough for the sources that are expected."""
        missing = num - len(self.free)
        if missing > 0:
            if num_expected:
                missing = max(missing, num_expected + SPARE_SLOTS - self.num)
            self.free += range(self.num, self.num + missing)
            self.num += missing
        return [self.free.pop() for _ in range(num)]

    def release(self, slots: Iterable[int]) -> None:
        """Free these slots."""
        self.free += slots

    def quarantine(self, slots: Iterable[int]) -> None:
        """Free these slots when the reports that are pending have been read."""
        self.quarantined += slots

    def end_quarantine(self) -> None:
        """Free the slots that no pending report names any more."""
        self.release(self.quarantined)
        self.quarantined = []
