"""Room for requests that wait: how many may, and who gives way to whom."""

from __future__ import annotations

from dataclasses import dataclass

from pybeam.arguments import number, whole
from pybeam.serving.ticket import Ticket
from pybeam.serving.waiting import WaitingLine


@dataclass(frozen=True)
class Limits:
    """The numbers of a service that its models need; see `Service`.

    Raises:
        TypeError, ValueError: one is wrong.
    """

    max_waiting: int
    max_waiting_work: int | None
    ageing: float
    max_step_seconds: float | None
    widths: tuple[tuple[int, int], ...] = ()  # with so many waiting, beams have at most that width
    nice: int = 0

    def __post_init__(self) -> None:
        whole("max_waiting", self.max_waiting, 1)
        if self.max_waiting_work is not None:
            whole("max_waiting_work", self.max_waiting_work, 1)
        number("ageing", self.ageing, 0)
        if self.max_step_seconds is not None:
            number("max_step_seconds", self.max_step_seconds, 0)
        whole("nice", self.nice, 0, 19)
        for one in self.widths:
            for value in one:
                whole("width_by_load", value, 1)


def has_room(limits: Limits, waiting: WaitingLine) -> bool:
    """Whether a request of little work may wait, whatever its priority."""
    most = limits.max_waiting_work
    return len(waiting) < limits.max_waiting and (most is None or waiting.work < most)


def giving_way(
    limits: Limits, waiting: WaitingLine, ticket: Ticket, now: float
) -> list[Ticket] | None:
    """Return the requests of lower levels that must leave before this one may wait; most often none.

    None: those are not enough.
    """
    leaving: list[Ticket] = []
    lower: list[Ticket] | None = None
    num, work, most = len(waiting), waiting.work + ticket.cost.work, limits.max_waiting_work
    # a request of more work than all may have is taken if it is alone, as it would never be otherwise
    while num >= limits.max_waiting or (most is not None and num and work > most):
        lower = waiting.below(ticket.priority, now) if lower is None else lower
        if not lower:
            return None
        leaving.append(lower.pop(0))
        num, work = num - 1, work - leaving[-1].cost.work
    return leaving
