"""`WaitingLine`: who waits for an engine, and whose turn it is."""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter

from pybeam.serving.ticket import Ticket


class WaitingLine:
    """Requests that wait. The next one is

    * of the highest level, which is its priority and one more for every `ageing` seconds that it has waited,
      so that none waits for ever;
    * among these, the first in the order of fair shares: clients take turns by work, and each client's
      requests come in their order.

    Those that have been deferred, since they will probably miss their deadlines, come behind all others. The
    first of them is the one whose steps may take longest.

    The fair order is start-time fair queuing (Goyal, Vin and Cheng 1996). A request's tag is the work that
    its client had asked for before it, or the tag of the last request that began, if that is more.

    Args:
        ageing: seconds.
    """

    def __init__(self, ageing: float) -> None:
        self._ageing = ageing
        # in one line all come in the order of their tags and of their ages, so only the first can be next
        self._lines: dict[tuple[int, Hashable], dict[int, Ticket]] = {}
        self._deferred: dict[int, Ticket] = {}
        self._tickets: dict[int, Ticket] = {}
        self._begun = 0.0  # tag of the last request that began
        self._asked: dict[Hashable, float] = {}  # tag of each client's next request
        self.work = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        """Add a request at the end of its line."""
        client, work = ticket.client, ticket.cost.work
        ticket.tag = max(self._begun, self._asked.get(client, 0.0))
        self._asked[client] = ticket.tag + work
        self._lines.setdefault((ticket.priority, client), {})[ticket.index] = ticket
        self._tickets[ticket.index] = ticket
        self.work += work

    def defer(self, ticket: Ticket) -> None:
        """Let all others pass a request that waits."""
        self._leave_line(ticket)
        self._deferred[ticket.index] = ticket

    def get(self, index: int) -> Ticket | None:
        """Return the request with this index, if it waits."""
        return self._tickets.get(index)

    def remove(self, index: int) -> Ticket | None:
        """Remove and return the request with this index, if it waits."""
        ticket = self._tickets.pop(index, None)
        if ticket is not None:
            if self._deferred.pop(index, None) is None:
                self._leave_line(ticket)
            self.work -= ticket.cost.work
        return ticket

    def next(self, now: float) -> Ticket | None:
        """Return the request whose turn it is."""
        firsts = (next(iter(line.values())) for line in self._lines.values())
        ticket = min(firsts, key=lambda one: self._rank(one, now), default=None)
        if ticket is None and self._deferred:
            ticket = max(self._deferred.values(), key=lambda one: one.spare_step(now))
        return ticket

    def is_deferred(self, ticket: Ticket) -> bool:
        """Whether all others pass a request that waits."""
        return ticket.index in self._deferred

    def begin(self, ticket: Ticket) -> None:
        """Remove a request whose turn it is."""
        self.remove(ticket.index)
        self._begun = max(self._begun, ticket.tag)
        # what a client had asked for before this counts no more
        self._asked = {c: tag for c, tag in self._asked.items() if tag > self._begun}

    def below(self, priority: int, now: float) -> list[Ticket]:
        """Return the requests of a lower level than one that comes now: the lowest first, then the last."""
        if all(one >= priority for one, _ in self._lines) and not self._deferred:
            return []
        lower = [one for one in self._tickets.values() if self._level(one, now) < priority]
        lower.sort(key=attrgetter("index"), reverse=True)
        return sorted(lower, key=lambda one: self._level(one, now))

    def clear(self) -> list[Ticket]:
        """Remove and return all requests."""
        return [ticket for index in list(self._tickets) if (ticket := self.remove(index))]

    def _leave_line(self, ticket: Ticket) -> None:
        key = ticket.priority, ticket.client
        del self._lines[key][ticket.index]
        if not self._lines[key]:
            del self._lines[key]

    def _level(self, ticket: Ticket, now: float) -> float:
        return ticket.priority + (now - ticket.submitted) // self._ageing

    def _rank(self, ticket: Ticket, now: float) -> tuple[float, float, int]:
        return -self._level(ticket, now), ticket.tag, ticket.index
