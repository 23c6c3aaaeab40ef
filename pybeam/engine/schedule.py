"""Schedules: which sources are admitted, and which rows move. Results do not depend on them.

Every schedule takes

* ``n``: sources decoded at once; or ``tokens``: source tokens decoded at once (at least one source);
* ``row_budget``: rows sent through the model in one step. With it, up to ``n * width`` sources may be
  live, whole beams move, and sources are admitted until their rows fill the budget. A new beam counts as
  one row, or, if no threshold prunes it, as all the rows that it may have;
* ``max_wait``: a paused source moves again after so many steps;
* ``window``: the queue is sorted by source length among so many requests, so that neighbours have similar
  lengths; default ``16 * n``. Requests are read that far ahead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from torch import Tensor

from pybeam.arguments import ArgumentError, real, whole
from pybeam.backends.arrays import NO_LIMIT, PlanRules
from pybeam.backends.torch_plan import Choose, chosen
from pybeam.contracts import MAX_WIDTH


class LoadLevel(NamedTuple):
    """How much is being decoded when a schedule decides whether to admit more."""

    sources: int = 0
    tokens: int = 0  # source tokens of all of them
    rows: int = 0  # they have so many in flight
    age: int = 0  # steps since the oldest of them was admitted

    def with_one_more(self, source_length: int, rows: int = 1) -> LoadLevel:
        """Return the load with one more source of that length, which is to have so many rows soon."""
        return LoadLevel(self.sources + 1, self.tokens + source_length, self.rows + rows, self.age)


@dataclass(frozen=True)
class Schedule(ABC):
    """Base of `Batch`, `Streaming` and `Fifo`.

    Args:
        n, tokens, row_budget, max_wait, window: see the module.

    Raises:
        TypeError, ValueError: a value is no such number.
    """

    n: int = 64
    tokens: int | None = field(default=None, kw_only=True)
    row_budget: int | None = field(default=None, kw_only=True)
    max_wait: int | None = field(default=None, kw_only=True)
    window: int | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def epsilon(self) -> float:
        """The share of `n` (or `tokens`) that may be left when the schedule refills."""

    def __post_init__(self) -> None:
        for name in ("n", "tokens", "row_budget", "max_wait", "window"):
            value = getattr(self, name)
            if value is not None or name == "n":
                whole(name, value, 1)
        real("epsilon", self.epsilon)
        if not 0 <= self.epsilon <= 1:
            raise ArgumentError("epsilon", f"must be between 0 and 1, but is {self.epsilon}")

    @property
    def most_sources(self) -> int:
        """Number of sources that are live at once. A row budget may admit as many as it has rows."""
        return max(self.n, self._refill_budget or 0)

    @property
    def queue_window(self) -> int:
        """Number of requests that are read ahead and sorted by length."""
        # 16 batches are enough for neighbours of like length, and few enough to start soon
        return 16 * self.n if self.window is None else self.window

    def check_width(self, width: int) -> None:
        """Raise ValueError if a beam of that width could never move."""
        if self.row_budget is not None and width > self.row_budget:
            raise ArgumentError(
                "row_budget",
                f"must be at least the width {width}, but is {self.row_budget}; a beam moves as a whole",
            )

    def refills(self, load: LoadLevel) -> bool:
        """Whether it is time to admit sources."""
        budget = self._refill_budget
        if budget is not None:
            return load.rows < budget
        used, limit = self._used(load)
        return used <= self.epsilon * limit

    def has_room(self, load: LoadLevel, source_length: int, width: int) -> bool:
        """Whether one more source of that length and width may be admitted; the first one always may."""
        if load.sources == 0:
            return True
        budget = self._refill_budget
        if budget is not None:
            return load.rows < budget and load.sources < self.n * width
        used, limit = self._used(load)
        return used + (1 if self.tokens is None else source_length) <= limit

    def may_have_room(self, load: LoadLevel) -> bool:
        """Whether some source may be admitted; `has_room` says whether a given one is."""
        return self.has_room(load, 0, MAX_WIDTH)

    @property
    def moves_all(self) -> bool:
        """Whether every source moves in every step for which there is room."""
        return self.row_budget is None and type(self).plan is Schedule.plan

    @property
    def admits_by_count(self) -> bool:
        """Whether sources are admitted only when others leave, and so nobody asks between two steps."""
        own = type(self)
        return self.moves_all and (own.refills, own.has_room) == (
            Schedule.refills,
            Schedule.has_room,
        )

    def plan(
        self, depth: Tensor, num_rows: Tensor, waited: Tensor, limit: int | None = None
    ) -> Tensor:
        """Choose the sources that move now, as a mask [L] over the live ones in order of admission.

        Args:
            depth: [L] int32, tokens of each source's rows.
            num_rows: [L], rows that each source would send through the model; 0 if it cannot move.
            waited: [L] int32, steps since each source last moved.
            limit: room for rows, apart from the budget; sources that waited longest go first.

        A kernel does it, unless a class has a method of its own, which gets tensors of the device, and whose
        steps run without CUDA graphs. Sources without rows stay. Those with rows fail if it moves none.
        """
        return chosen(depth, num_rows, waited, self.rules(limit))

    def planner(self, limit: int | None = None) -> PlanRules | Choose:
        """The rules of `plan`, or `plan` itself, checked, where a class has one of its own."""
        if type(self).plan is Schedule.plan:
            return self.rules(limit)
        from pybeam.engine.own_plans import checked

        return checked(self.plan, self, limit)

    def rules(self, limit: int | None = None) -> PlanRules:
        """The rules of `plan`, as numbers for a kernel."""
        limits = [rows for rows in (self.row_budget, limit) if rows is not None]
        return PlanRules(
            only_least=self._moves_only_least,
            order=0 if self.row_budget is None else self._order,
            most_rows=min(limits, default=NO_LIMIT),
            max_wait=NO_LIMIT if self.max_wait is None else self.max_wait,
        )

    @property
    def _moves_only_least(self) -> bool:
        """Whether only the least advanced sources move, and those that waited for `max_wait` steps."""
        return False

    @property
    def _order(self) -> int:
        """Whether the least advanced sources come first in a row budget (1), or the most advanced (-1)."""
        return 1

    @property
    def _refill_budget(self) -> int | None:
        """Number of rows up to which sources are admitted; None: places or source tokens decide."""
        return self.row_budget

    def _used(self, load: LoadLevel) -> tuple[int, int]:
        """Return how many places, or source tokens, are taken, and how many there are."""
        return (load.sources, self.n) if self.tokens is None else (load.tokens, self.tokens)


@dataclass(frozen=True)
class Batch(Schedule):
    """Admit n sources when none is live; all of them move until the last one is done.

    Args:
        n, tokens, row_budget, max_wait, window: see `pybeam.engine.schedule`.

    Raises:
        TypeError, ValueError: a value is no such number.
    """

    epsilon: ClassVar[float] = 0.0

    @property
    def _refill_budget(self) -> None:
        return None


@dataclass(frozen=True)
class Streaming(Schedule):
    """Refill to n when at most ``epsilon * n`` sources are live; the least advanced ones move.

    With a row budget, whole beams move in the order of (tokens generated, admission) until the next one
    would exceed it.

    A source with a long output can stay for long: whenever the schedule refills, it pauses until the new
    sources are as advanced. `flush` bounds that. Once the oldest source has been there for `flush` steps,
    no source is admitted until all that are there have finished. Without a row budget, the oldest source
    is then done after at most as many more steps as the longest output has tokens. Results are the same
    with and without it. Only the order in which they come and the number of steps change.

    Args:
        epsilon: 0 to 1; the share of `n` (or `tokens`) that is left when it refills.
        flush: steps after which the oldest source is stuck; None: none ever is.
        n, tokens, row_budget, max_wait, window: see `pybeam.engine.schedule`.

    Raises:
        TypeError, ValueError: a value is no such number.

    See VAR-STREAM of Yang et al. 2020, Algorithm 1; `flush` is that of footnote 3.
    """

    epsilon: float = 1 / 6
    flush: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.flush is not None:
            whole("flush", self.flush, 1)

    def refills(self, load: LoadLevel) -> bool:
        """Whether it is time to admit sources, which it is not while one of `load` is `flush` steps old."""
        if self.flush is not None and load.age >= self.flush and load.sources:
            return False
        return super().refills(load)

    @property
    def moves_all(self) -> bool:
        return False

    @property
    def _moves_only_least(self) -> bool:
        return self.row_budget is None


@dataclass(frozen=True)
class Fifo(Schedule):
    """Refill to n when at most ``epsilon * n`` sources are live; all move, whatever their lengths.

    ``epsilon = 1`` is continuous batching: a free place is taken at once. With a row budget, the most
    advanced beams go first.

    Args:
        epsilon: 0 to 1; the share of `n` (or `tokens`) that is left when it refills.
        n, tokens, row_budget, max_wait, window: see `pybeam.engine.schedule`.

    Raises:
        TypeError, ValueError: a value is no such number.

    See VAR-STR-FIFO of Yang et al. 2020, A.2, where padding made it slow; nothing is padded here.
    """

    epsilon: float = 1.0

    @property
    def _order(self) -> int:
        return -1
