"""Who goes, goes: out of the queue at once, out of the beam at the next step, and nobody else notices."""

from __future__ import annotations

import asyncio
import copy
import random
import threading
from concurrent.futures import CancelledError, wait
from contextlib import closing

import pytest

import pybeam
from pybeam.engine.schedule import LoadLevel
from pybeam.serving.answers import Cost
from pybeam.serving.engine_thread import EngineThread
from pybeam.serving.forked_decoder import ForkedDecoder
from pybeam.serving.ticket import Ticket
from support.gates import WAIT_SECONDS
from support.served import MODEL, REQUESTS, answers, decoder, expected, gated, told, wait_for

SCHEDULES = [
    pybeam.Fifo(3),
    pybeam.Batch(4),
    pybeam.Streaming(4, 0.5),
    pybeam.Fifo(3, row_budget=12),
    pybeam.Fifo(tokens=9),
]


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    "name", ["greedy", "fixed", "variable", "optimal", "stochastic", "adaptive"]
)
def test_whoever_goes_the_others_get_their_results(name):
    """Some are cancelled at once, some from other threads while they run, some twice."""
    results, rng = expected(name), random.Random(name)
    for schedule in rng.sample(SCHEDULES, 2):
        service = pybeam.Service(decoder(name, schedule)).start(warm_up=False)
        with closing(service):
            futures = [service.submit(request) for request in REQUESTS]
            gone = rng.sample(range(17), 6)
            threads = [threading.Thread(target=futures[i].cancel) for i in gone * 2]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for i, future in enumerate(futures):
                if not future.cancelled():
                    assert told(future.result(WAIT_SECONDS).result) == results[i]
        status = service.status()
        assert (status.num_running, status.num_waiting, status.waiting_work) == (0, 0, 0)
        assert status.cache_use == 0


def test_while_it_waits():
    model, service = gated(schedule=pybeam.Fifo(1))
    queue = service._groups["default"].queue
    model.shut()
    first = service.submit(REQUESTS[0])
    model.until_a_step_waits()
    second, third = service.submit(REQUESTS[1]), service.submit(REQUESTS[2])
    assert second.cancel()
    assert service.status().num_waiting == 1, "it has left the queue at once"
    assert queue.has_news[0] and not queue.must_leave[0]
    model.open()
    assert answers([first, third]) == [expected()[0], expected()[2]]
    assert not [calls for calls in model.calls if 1 in calls]
    service.close()


def test_while_it_runs():
    model, service = gated()
    model.shut()
    futures = [service.submit(request) for request in REQUESTS[:3]]
    model.until_a_step_waits()
    wait_for(lambda: service.status().num_waiting == 0)
    num_calls = len(model.calls)
    group = service._groups["default"]
    [engine], queue = group._engines, group.queue
    assert engine.must_leave is queue.must_leave and not queue.must_leave[0]
    assert futures[1].cancel() and futures[1].cancel()
    assert queue.must_leave[0]
    # who waits for several futures hears of it
    assert wait([futures[1]], WAIT_SECONDS).done
    model.open()
    assert answers([futures[0], futures[2]]) == [expected()[0], expected()[2]]
    assert not [calls for calls in model.calls[num_calls + 1 :] if 1 in calls]
    service.close()
    assert service.status().cache_use == 0


def test_a_flag_stays_until_the_last_engine_has_heard_it():
    """Another engine that looks between two steps does not take it away."""
    service = pybeam.Service([decoder(), decoder(model=copy.copy(MODEL))])
    group = service._groups["default"]
    (first, second), queue = group._engines, group.queue
    tickets = [Ticket(request=one, cost=Cost(0, 1), submitted=0.0) for one in REQUESTS[:2]]
    for ticket in tickets:
        queue.submit(ticket)
    for engine in (first, second):
        assert engine.next(may_wait=True) is not None
    assert len(queue.taken) == 2 and not queue.must_leave[0]
    assert tickets[1].future.cancel()
    for engine, leaving in ((first, 0), (second, 1)):
        assert queue.must_leave[0] and queue.has_news[0]
        assert len(engine.between_steps(LoadLevel())) == leaving
    assert not queue.must_leave[0] and not queue.has_news[0]


def test_a_flag_stays_until_a_process_has_heard_the_answer():
    """Or its next steps, which begin before the answer is there, would go on for long without it."""
    queue = pybeam.Service(decoder())._groups["default"].queue
    engine = EngineThread(queue, ForkedDecoder(decoder(), None, 0), 1, lambda: None)
    tickets = [Ticket(request=one, cost=Cost(0, 1), submitted=0.0) for one in REQUESTS[:2]]
    for ticket in tickets:
        queue.submit(ticket)
    # a process that waits for the answer hears it at once
    assert engine.next(may_wait=True) is not None and queue.has_news[0]
    assert not engine.between_steps(LoadLevel())
    assert engine.next(may_wait=False) is not None
    assert queue.has_news[0] and not queue.must_leave[0]
    assert not engine.between_steps(LoadLevel()) and not queue.has_news[0]
    assert tickets[0].future.cancel()
    assert len(engine.between_steps(LoadLevel())) == 1
    assert queue.has_news[0] and queue.must_leave[0]
    assert not engine.between_steps(LoadLevel())
    assert not queue.has_news[0] and not queue.must_leave[0]
    queue.submit(Ticket(request=REQUESTS[2], cost=Cost(0, 1), submitted=0.0))
    assert engine.next(may_wait=True) is not None and not queue.has_news[0]


def test_a_flag_stays_until_a_process_has_taken_what_it_has_read():
    """Whatever other engines say meanwhile, its next steps would go on for long without it."""
    service = pybeam.Service([decoder(), decoder(model=copy.copy(MODEL))])
    group = service._groups["default"]
    engine, queue = group._engines[0], group.queue
    queue.has_read[1] = queue.has_news[0] = True
    assert not engine.between_steps(LoadLevel()) and queue.has_news[0]
    queue.submit(Ticket(request=REQUESTS[0], cost=Cost(0, 1), submitted=0.0))
    assert engine.next(may_wait=True) is not None and queue.has_news[0]
    queue.has_read[1] = False
    assert not engine.between_steps(LoadLevel()) and not queue.has_news[0]


def test_when_it_is_done():
    with pybeam.Service(decoder()) as service:
        future = service.submit(REQUESTS[0])
        assert answers([future]) == expected()[:1]
        assert not future.cancel()
        assert answers([future]) == expected()[:1]


def test_tasks_that_are_cancelled_and_streams_that_are_left():
    model, service = gated()

    async def leave():
        model.shut()
        others = [asyncio.ensure_future(service.decode(request)) for request in REQUESTS[:2]]
        task = asyncio.ensure_future(service.decode(REQUESTS[2]))
        left = service.stream(REQUESTS[3])
        held = service.stream(REQUESTS[4])
        await asyncio.to_thread(model.until_a_step_waits)
        task.cancel()
        del left
        await held.aclose()
        assert [event async for event in held] == []
        model.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [told(one.result) for one in await asyncio.gather(*others)]

    assert asyncio.run(leave()) == expected()[:2]
    # one that leaves in the middle
    assert asyncio.run(first_event(service)) is not None
    wait_for(lambda: service.status().num_running == 0)
    service.close()
    assert service.status().cache_use == 0


async def first_event(service):
    async for event in service.stream(REQUESTS[5], best_so_far=True):
        return event


def test_a_loop_that_is_closed_changes_nothing_for_others():
    model, service = gated()
    model.shut()
    loop = asyncio.new_event_loop()

    async def begin():
        return service.stream(REQUESTS[0], best_so_far=True)

    stream = loop.run_until_complete(begin())
    model.until_a_step_waits()
    loop.close()
    other = service.submit(REQUESTS[1])
    model.open()
    assert answers([other]) == expected()[1:2]
    service.close()
    del stream


def test_a_future_that_was_cancelled_says_so():
    with pybeam.Service(decoder()) as service:
        future = service.submit(REQUESTS[0])
        if future.cancel():
            with pytest.raises(CancelledError):
                future.result(WAIT_SECONDS)
