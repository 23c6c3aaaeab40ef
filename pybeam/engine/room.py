"""`Room`: the pages, the bytes and the sizes of arrays that the sources of a workspace need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pybeam.contracts import PAGE_CELLS
from pybeam.engine.slots import Slots
from pybeam.engine.source import Source
from pybeam.models.base import Session
from pybeam.state.beam_state import BeamState

# Room for so many tokens per hypothesis at first. Room doubles when it is used up. A small number costs a few
# copies, a large one costs memory that short outputs never use.
FIRST_LENGTH = 32
# The same where steps are captured: graphs refer to arrays, so all are lost when one grows.
FIRST_LENGTH_OF_GRAPHS = 128


@dataclass
class Sizes:
    """Sizes that the arrays of a workspace follow from."""

    width: int = 0
    length: int = 0  # tokens of a hypothesis
    positions: int = 0  # of a source
    pages: int = 0

    def note(self, width: int = 0, length: int = 0, positions: int = 0, pages: int = 0) -> None:
        """Raise each size to the other of that name."""
        self.width = max(self.width, width)
        self.length = max(self.length, length)
        self.positions = max(self.positions, positions)
        self.pages = max(self.pages, pages)


class Room:
    """How much there is, and how much may have been taken.

    The host never asks the device how much room is left. It counts what may have been taken since the last
    report.

    Args:
        memory_limit: bytes for keys and values, None for no limit.

    Attributes:
        length: tokens of a hypothesis for which arrays have room.
        claimed_pages: pages that may have been taken since the beginning, less those that have become free.
        num_expected: sources for which there is room from the first on, where steps are captured.
        may_have_grown: whether arrays may have been replaced; whoever compares them sets it back.
        steps_ahead: most steps between two reports.
        needed: what sources have needed since somebody has set it back.
    """

    def __init__(
        self, state: BeamState, session: Session, slots: Slots, memory_limit: int | None
    ) -> None:
        self._state, self._session, self._slots = state, session, slots
        self._memory_limit, self._tree = memory_limit, state.tree
        page_bytes = session.max_bytes(PAGE_CELLS, 0)
        if memory_limit is not None and page_bytes:
            self._tree.max_pages = memory_limit // page_bytes
        self.length = self.claimed_pages = self.num_expected = 0
        self.may_have_grown, self.steps_ahead = True, 1
        self.needed = Sizes()
        # that arrays have room for, beside `length`
        self._num_slots = self._width = self._num_nodes = 0
        self._session_room = (0, 0)  # slots and cells
        self._free_pages = 0  # at least so many

    def max_bytes(self, source: Source) -> int:
        """Return the bytes that keys and values of a source may need. Raises ValueError if they never fit."""
        width, length = source.algorithm.max_width, source.source_length
        num_pages = -(-width * source.max_tokens // PAGE_CELLS) + 1
        needed = self._session.max_bytes(num_pages * PAGE_CELLS, length)
        limit = self._memory_limit
        if limit is not None and needed > limit:
            raise ValueError(
                f"this request may need {needed / 1e6:.1f} MB for keys and values "
                f"({width} rows of {source.max_tokens} tokens, {length} source positions), but "
                f"`memory_limit` is {limit / 1e6:.1f} MB; lower `width` or `max_length`, or raise the limit"
            )
        return needed

    def free_bytes(self, taken_bytes: int) -> float:
        """Return the bytes that are left if sources need `taken_bytes`."""
        return math.inf if self._memory_limit is None else self._memory_limit - taken_bytes

    def reserve(
        self, length: int, live: Iterable[Source], newcomers: Sequence[Source] = ()
    ) -> None:
        """Make room for hypotheses of that many tokens of live sources, and for newcomers.

        Room for tokens grows ahead of need, but not beyond the longest hypothesis that a source may have. A
        slot has room for the nodes of each source, and not for the widest beam of the longest hypotheses.
        """
        widest = max([source.algorithm.max_rows for source in newcomers], default=0)
        farthest = max([source.source_length for source in newcomers], default=0)
        self.needed.note(widest, length, farthest)
        # newcomers may bring longer prefixes and sources than there is room for
        self.may_have_grown = True
        growing, most = newcomers, self.length
        if most < length:
            # longer hypotheses have more nodes
            growing = [*live, *newcomers]
            longest = max(source.max_tokens for source in growing)
            first = FIRST_LENGTH_OF_GRAPHS if self.num_expected else FIRST_LENGTH
            ahead = max(first, 2 * most)
            # rather a little more now than all again for the last tokens
            ahead = longest if 4 * ahead >= 3 * longest else ahead
            most = max(length, ahead)
        before = self._num_slots, self._width, self.length, self._num_nodes
        nodes = (source.max_nodes(most) for source in growing)
        sizes = (
            max(self._num_slots, self._slots.num),
            max(self._width, widest),
            most,
            max([self._num_nodes, *nodes]),
        )
        if sizes == before:
            return
        self._state.reserve(*sizes)
        self._reserve_expected_pages(most)
        self._reserve_session()
        # only now: what could not be allocated is asked for again
        self._num_slots, self._width, self.length, self._num_nodes = sizes

    def for_steps(self, num: int, num_sources: int, length: int, live: Iterable[Source]) -> None:
        """Make room for steps of so many live sources, after which a row may have that many tokens."""
        if length > self.length:
            self.reserve(length, live)
        self.needed.length = max(self.needed.length, length)
        self.claim(num_sources, num_steps=num)

    def claim(self, num_sources: int, num_more: int = 0, num_steps: int = 1) -> None:
        """Claim the pages of the nodes, keys and values that so many beams append in these steps.

        `num_more` is a number of pages beside those.
        """
        tree = self._tree
        num_new = num_sources * tree.pages_of(num_steps) + num_more
        if num_new > self._free_pages:
            self.add_free(tree.reserve_pages(num_new, self._free_pages))
        self.add_free(-num_new)
        self.needed.pages = max(self.needed.pages, tree.num_total_pages - self._free_pages)
        if self._session_room[1] < tree.num_cells:
            self.may_have_grown = True
            self._reserve_session()

    def add_free(self, num_pages: int) -> None:
        """Count pages that become free. A report that is under way does not know them."""
        self._free_pages += num_pages
        self.claimed_pages -= num_pages

    def read_report(self, num_free_pages: int, claimed_pages: int) -> None:
        """Store how many pages were free on the device when `claimed_pages` had been claimed."""
        self._free_pages = num_free_pages - (self.claimed_pages - claimed_pages)
        self.needed.note(pages=self._tree.num_total_pages - num_free_pages)

    def has_session_room(self, slot: int) -> bool:
        """Whether the session has room for that slot: memory may have been missing for it."""
        return slot < self._session_room[0]

    def _reserve_expected_pages(self, length: int) -> None:
        """Make room for one hypothesis of that length of every source that is expected.

        Rows share most of their tokens. Steps of two reports may be claimed that none has confirmed.
        """
        tree = self._tree
        total = self.num_expected * (-(-length // PAGE_CELLS) + 3 * tree.pages_of(self.steps_ahead))
        if tree.max_pages is not None:
            total = min(total, tree.max_pages)
        missing = total - tree.num_total_pages
        if missing > 0:
            self.add_free(tree.reserve_pages(missing, 0))

    def _reserve_session(self) -> None:
        num_slots, num_cells = self._slots.num, self._tree.num_cells
        self._session.reserve(num_slots, self._state.width_capacity, num_cells)
        self._session_room = num_slots, num_cells
