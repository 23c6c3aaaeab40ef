"""Cells of prompts, of which equal beginnings are stored once.

Pages of 16 tokens form a tree: a page is known by its tokens and by the page before it. A prompt takes the
pages that are known, and new ones behind them. A page that no slot uses stays for later prompts, until too
many are idle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pybeam.contracts import PAGE_CELLS
from pybeam.kvcache.pools import SourceCells

# A page by what it holds: the page before it, or a negative number for none, and its tokens.
Content = tuple[int, tuple[int, ...]]


class Placed(NamedTuple):
    """Where prompts have been placed.

    Attributes:
        num_known: per prompt, how many of its first tokens are in pages of earlier prompts.
        new_pages: pages that were not known before.
    """

    num_known: list[int]
    new_pages: list[int]


class PrefixCells(SourceCells):
    """Cells of every slot's prompt, in pages that slots share.

    Args:
        device: where tables of cells are.
        max_idle: how many pages without a slot are kept. The one unused for longest is dropped first.
    """

    def __init__(self, device: torch.device, max_idle: int) -> None:
        super().__init__(device)
        self._max_idle = max_idle
        self._users: dict[int, int] = {}  # page -> slots that use it
        self._page_of: dict[Content, int] = {}
        self._content: dict[int, Content] = {}  # of pages that can be found
        # A page comes before the page in front of it, because both are idle since the same slot left, or it
        # longer. So the oldest has no page behind it.
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_idle(self) -> int:
        """Number of pages that are kept without a slot."""
        return len(self._idle)

    def place(
        self, slots: Sequence[int], prompts: Sequence[Sequence[int]], kinds: Sequence[int]
    ) -> Placed:
        """Give cells to the prompts of these slots.

        Args:
            slots: empty slots.
            prompts: tokens of each.
            kinds: numbers of at least 0. Prompts of different kinds share nothing.
        """
        placed = Placed([], [])
        try:
            for slot, prompt, kind in zip(slots, prompts, kinds, strict=True):
                placed.num_known.append(self._place(slot, prompt, kind, placed.new_pages))
            self._write(slots, [len(prompt) for prompt in prompts])
        except BaseException:
            # nobody will fill them
            self.forget(placed.new_pages)
            raise
        return placed

    def forget(self, pages: Sequence[int]) -> None:
        """Let no later prompt find these pages, because they have not been filled."""
        for page in pages:
            if page in self._content:
                del self._page_of[self._content.pop(page)]

    def cells(self, slot: int) -> list[int]:
        """Return the cells of a slot's pages, in order."""
        return [PAGE_CELLS * page + i for page in self._pages[slot] for i in range(PAGE_CELLS)]

    def release(self, slots: Sequence[int]) -> list[int]:
        """Let these slots go. Pages that nobody uses any more become idle, or free. Returns the free ones."""
        freed = []
        for slot in slots:
            for page in reversed(self._pages.pop(slot, ())):
                self._users[page] -= 1
                if not self._users[page]:
                    freed += self._leave(page)
        self._free += freed
        return freed

    def _place(self, slot: int, prompt: Sequence[int], kind: int, new_pages: list[int]) -> int:
        pages = self._pages[slot] = []
        before, num_known, is_known = -1 - kind, 0, True
        for first in range(0, len(prompt), PAGE_CELLS):
            tokens = tuple(prompt[first : first + PAGE_CELLS])
            content = before, tokens
            page = self._page_of.get(content) if is_known else None
            if page is None:
                is_known = False
                [page] = self._take(1)
                if len(tokens) == PAGE_CELLS:
                    self._page_of[content], self._content[page] = page, content
                    new_pages.append(page)
            else:
                num_known += PAGE_CELLS
                self._idle.pop(page, None)
            self._users[page] = self._users.get(page, 0) + 1
            pages.append(page)
            before = page
        return num_known

    def _leave(self, page: int) -> list[int]:
        """Keep a page that nobody uses, if it can be found. Returns what there is no room for."""
        del self._users[page]
        if page not in self._content:
            return [page]
        self._idle[page] = None
        if len(self._idle) <= self._max_idle:
            return []
        oldest, _ = self._idle.popitem(last=False)
        self.forget([oldest])
        return [oldest]
