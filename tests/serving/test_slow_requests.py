"""An engine process reads requests that may take long beside its steps."""

from __future__ import annotations

import itertools
import multiprocessing
import threading

import numpy as np

import pybeam
from pybeam.engine.arrivals import Watch
from pybeam.engine.schedule import LoadLevel
from pybeam.serving.engine_process import Answer, SentArrivals, packed, receive, send
from support.gates import WAIT_SECONDS
from support.served import wait_for


class Slow:
    """Takes as long to be read as somebody wants, and may fail then."""

    may_end = threading.Event()

    def __init__(self, is_wrong: bool) -> None:
        self.is_wrong = is_wrong

    def __setstate__(self, state: dict) -> None:
        assert self.may_end.wait(WAIT_SECONDS)
        if state["is_wrong"]:
            raise ValueError("wrong")


def test_a_request_that_takes_long_to_be_read_holds_nobody_up():
    """Neither those that come behind it, nor those that are decoded."""
    ours, theirs = multiprocessing.Pipe()
    Slow.may_end.clear()
    with ours, theirs:
        flags = has_news, _, has_read = np.zeros((3, 1), dtype=np.bool_)
        arrivals = SentArrivals(theirs, pybeam.Fifo(4), [], flags)
        arrivals._tell(waits=True)
        long = [packed(pybeam.Request([i], id=Slow(is_wrong))) for i, is_wrong in enumerate((0, 1))]
        plain = packed(pybeam.Request([2]))
        answer = [(i, one, Watch.NOTHING, True) for i, one in enumerate(long)]
        send(ours, Answer({}, [*answer, (2, plain, Watch.NOTHING, False)]))
        assert arrivals.next(may_wait=True)[0] == 2
        assert arrivals.next(may_wait=False) is None
        assert arrivals._room(LoadLevel()) == 1 and not has_news[0]
        Slow.may_end.set()
        wait_for(lambda: has_news[0] and all(one.done() for one in arrivals._reading))
        assert has_read[0]
        assert arrivals.next(may_wait=False)[0] == 0
        assert arrivals.next(may_wait=False) is None
        reports = [receive(ours)]
        while ours.poll():
            reports.append(receive(ours))
        failed = [*itertools.chain(*(one.items for one in reports)), *arrivals._items]
        assert [str(one.error) for one in failed] == ["wrong"]
        arrivals.between_steps(LoadLevel())
        assert not has_read[0]
        has_read[0] = True
        SentArrivals(theirs, pybeam.Fifo(4), [], flags)
        assert not has_read[0]
