"""`Arrivals`: what a stream asks about requests while it runs: which is next, who leaves, who listens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, ClassVar, Literal

import numpy as np

from pybeam.engine.schedule import LoadLevel

# where a request is: its source is being encoded, it waits for a place, its beam is open
Phase = Literal["encode", "wait", "decode"]


class Watch(IntEnum):
    """The news that a request hears before its result; each level has what is before it."""

    NOTHING = 0
    CERTAIN = 1  # a `Partial` whenever more tokens are certain
    BEST = 2  # and whenever the best row changes


class Arrivals(ABC):
    """The requests of a stream. All methods are called in the stream's thread, between its steps.

    Attributes:
        keeps_order: whether requests are decoded in the order in which they are taken, as late as possible.
            If not, those that are taken together are sorted by length.
        may_get_more: whether a call of `next` that need not wait may find more after it has found nothing.
        has_news: [1] bool, whether a request waits or must leave, which another thread may set. While it is
            not set, many steps may go by without a question. None: the stream asks after every step.
        must_leave: [1] bool, whether a request must leave. It alone is news while nobody can be admitted.
            None: `has_news` is.
        patience: seconds per row in which such a call goes on beside a source that comes or is done.
    """

    keeps_order: ClassVar[bool] = False
    may_get_more: ClassVar[bool] = True
    has_news: np.ndarray | None = None
    must_leave: np.ndarray | None = None
    patience: float = 0.0

    @abstractmethod
    def next(self, may_wait: bool) -> tuple[int, Any] | None:
        """Take the next request, with its index.

        Returns None if there is none now, or, with `may_wait`, if there will be none.
        """

    def between_steps(self, load: LoadLevel) -> Mapping[int, Exception]:
        """Return the requests that must leave now, wherever they are, by index, and why.

        The error becomes `Result.error`. With an `Interrupted` the result has the best hypotheses so far. An
        index that is not in the stream means nothing.

        Args:
            load: what is being decoded.
        """
        return {}

    def watch(self, index: int) -> Watch:
        """Return what a request hears before its result. It is asked once, when the request is taken."""
        return Watch.NOTHING

    def enter(self, phase: Phase, indices: Iterable[int], ago: float = 0.0) -> None:
        """Note that these requests entered a phase, so many seconds ago."""


class IterableArrivals(Arrivals):
    """The requests of an ordinary iterable, which is always waited for."""

    may_get_more = False

    def __init__(self, requests: Iterable[Any]) -> None:
        self._numbered = enumerate(requests)
        # whoever waits is admitted when another leaves
        asks_each_step = type(self).between_steps is not Arrivals.between_steps
        self.has_news = None if asks_each_step else np.zeros(1, dtype=np.bool_)

    def next(self, may_wait: bool) -> tuple[int, Any] | None:
        return next(self._numbered, None)
