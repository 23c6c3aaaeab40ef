"""Whose turn it is: priority, age, fair shares, and the order within a client's requests."""

from __future__ import annotations

import random

import pytest

import pybeam
from pybeam.serving.answers import Cost
from pybeam.serving.forecast import Outlook
from pybeam.serving.ticket import Ticket
from pybeam.serving.waiting import WaitingLine


def ticket(index, *, submitted=0.0, priority=0, client=None, work=1):
    return Ticket(
        index=index,
        request=pybeam.Request([1]),
        cost=Cost(work, 1),
        submitted=submitted,
        priority=priority,
        client=client,
    )


def line_of(*tickets, ageing=10.0):
    line = WaitingLine(ageing)
    for one in tickets:
        line.add(one)
    return line


def pop(line, now):
    ticket = line.next(now)
    if ticket is not None:
        line.begin(ticket)
    return ticket


def order(line, now=0.0):
    return [pop(line, now).index for _ in range(len(line))]


def test_first_come_first_served_within_a_level():
    line = line_of(*(ticket(i, priority=i % 3) for i in range(9)))
    assert order(line) == [2, 5, 8, 1, 4, 7, 0, 3, 6]
    assert pop(line, 0.0) is None


def test_who_has_waited_rises():
    line = line_of(
        ticket(0), ticket(1, submitted=9.0, priority=1), ticket(2, submitted=10.0, priority=2)
    )
    assert pop(line, 10.0).index == 2
    # the first one has risen to level 1 and came before the second
    assert order(line, 10.0) == [0, 1]


def test_nobody_waits_for_ever():
    """However many of a higher priority come, one every second."""
    line, now = line_of(ticket(0)), 0.0
    for index in range(1, 100):
        now += 1.0
        line.add(ticket(index, submitted=now, priority=3))
        if pop(line, now).index == 0:
            break
    assert 30 <= now <= 31


def test_clients_take_turns():
    line = line_of(
        *(ticket(i, client="many") for i in range(6)),
        ticket(6, client="few"),
        ticket(7, client="few"),
    )
    assert order(line) == [0, 6, 1, 7, 2, 3, 4, 5]


def test_turns_are_taken_by_work():
    big = [ticket(i, client="big", work=30) for i in range(4)]
    small = [ticket(i, client="small", work=10) for i in range(4, 16)]
    taken = order(line_of(*big, *small))
    work = {"big": 0, "small": 0}
    for index in taken[:12]:
        work["big" if index < 4 else "small"] += 30 if index < 4 else 10
        assert abs(work["big"] - work["small"]) <= 30


def test_a_client_that_comes_late_owes_nothing_and_is_owed_nothing():
    line = line_of(*(ticket(i, client="old") for i in range(100)))
    for _ in range(50):
        pop(line, 0.0)
    for i in range(100, 110):
        line.add(ticket(i, client="new"))
    taken = order(line)[:20]
    assert sum(index >= 100 for index in taken) == 10


@pytest.mark.parametrize("seed", range(3))
def test_what_is_removed_never_comes(seed):
    rng = random.Random(seed)
    tickets = [
        ticket(i, priority=rng.randrange(3), client=rng.randrange(4), work=rng.randrange(1, 9))
        for i in range(40)
    ]
    line = line_of(*tickets)
    gone = set(rng.sample(range(40), 15))
    for index in gone:
        assert line.remove(index) is tickets[index]
        assert line.remove(index) is None
    assert line.work == sum(one.cost.work for one in tickets if one.index not in gone)
    assert sorted(order(line)) == sorted(set(range(40)) - gone)
    assert (len(line), line.work) == (0, 0)


def test_who_is_deferred_lets_all_others_pass():
    """The first of them is the one whose steps may take longest."""
    tickets = [ticket(i, priority=i % 2) for i in range(4)]
    for one, (deadline, steps) in zip(tickets, [(9, 2), (9, 1), (12, 4), (12, 1)], strict=True):
        one.deadline, one.outlook = deadline, Outlook(steps=steps)
    line = line_of(*tickets, ticket(4, priority=-1), ticket(5, priority=-2))
    for one in tickets:
        line.defer(one)
    assert line.is_deferred(tickets[0]) and not line.is_deferred(line.get(4))
    assert (len(line), line.work, line.get(3)) == (6, 6, tickets[3])
    assert line.remove(3) is tickets[3] and line.get(3) is None
    assert order(line, 2.0) == [4, 5, 1, 0, 2]
    assert (len(line), line.work) == (0, 0)
