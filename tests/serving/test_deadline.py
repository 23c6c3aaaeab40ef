"""A request whose time is over ends, wherever it is, with an error or with the best so far."""

from __future__ import annotations

import math

import pytest

import pybeam
from pybeam.serving import DeadlineExceeded
from pybeam.serving.answers import Cost
from pybeam.serving.forecast import NUM_STEPS, Forecast, Outlook
from pybeam.serving.model_queue import Limits, ModelQueue
from pybeam.serving.speed_estimate import SpeedEstimate
from pybeam.serving.ticket import Ticket
from support.gates import WAIT_SECONDS, Clock
from support.served import MODEL, REQUESTS, answers, expected, gated, wait_for


def at_the_gate(model, service, requests, **options):
    """Futures of requests that run, the first step of which waits at the gate."""
    model.shut()
    futures = [service.submit(request, **options) for request in requests]
    model.until_a_step_waits()
    wait_for(lambda: service.status().num_waiting == 0)
    return futures


@pytest.mark.parametrize("timeout", [0, -1.5, 0.0])
def test_no_time_at_all(timeout):
    model, service = gated()
    future = service.submit(REQUESTS[0], timeout=timeout)
    with pytest.raises(DeadlineExceeded, match="has passed"):
        future.result(0)
    with pytest.raises(TimeoutError):
        future.result(0)
    service.close()
    assert not model.calls


def test_it_counts_from_when_the_request_came():
    """Its time in the queue does so, too; and nobody decodes what is too late when it is submitted."""
    clock = Clock()
    model, service = gated(clock=clock)
    came, clock.now = clock.now, clock.now + 2
    late = service.submit(REQUESTS[0], timeout=2, since=came)
    with pytest.raises(DeadlineExceeded, match="2 seconds has passed"):
        late.result(0)
    assert service.submit(REQUESTS[1], timeout=3, since=came).result(WAIT_SECONDS).times.queued == 2
    with pytest.raises(TypeError, match="`since`"):
        service.submit(REQUESTS[1], since="now")
    model.shut()
    runs = service.submit(REQUESTS[0], timeout=3, since=came)
    model.until_a_step_waits()
    clock.now += 1
    model.open()
    with pytest.raises(DeadlineExceeded, match="3 seconds has passed"):
        runs.result(WAIT_SECONDS)
    service.close()


def test_it_passes_while_it_waits():
    clock = Clock()
    model, service = gated(schedule=pybeam.Fifo(1), clock=clock)
    [first] = at_the_gate(model, service, REQUESTS[:1])
    futures = [service.submit(REQUESTS[i], timeout=i) for i in (1, 2, 3)]
    clock.now += 2.5
    model.open()
    for future in futures[:2]:
        with pytest.raises(DeadlineExceeded, match="has passed"):
            future.result(WAIT_SECONDS)
    assert answers([first, futures[2]]) == [expected()[0], expected()[3]]
    assert not [calls for calls in model.calls if calls & {1, 2}], "they never begin"
    service.close()


def test_it_passes_while_it_runs():
    clock = Clock()
    model, service = gated(clock=clock)
    model.shut()
    late, other = service.submit(REQUESTS[0], timeout=2), service.submit(REQUESTS[1], timeout=9)
    model.until_a_step_waits()
    wait_for(lambda: service.status().num_waiting == 0)
    clock.now += 2
    num_calls = len(model.calls)
    model.open()
    with pytest.raises(DeadlineExceeded, match="2 seconds"):
        late.result(WAIT_SECONDS)
    assert answers([other]) == expected()[1:2]
    assert not [calls for calls in model.calls[num_calls + 1 :] if 0 in calls]
    service.close()
    assert service.status().cache_use == 0


def test_nobody_waits_for_a_step_when_time_is_over():
    """By the clock on the wall: callers hear of it while the step still waits at the gate."""
    model, service = gated(schedule=pybeam.Fifo(1))
    model.shut()
    runs, waits = (service.submit(REQUESTS[i], timeout=0.02) for i in (0, 1))
    model.until_a_step_waits()
    for future in (runs, waits):
        with pytest.raises(DeadlineExceeded):
            future.result(WAIT_SECONDS)
    assert not model.gate.is_set()
    other = service.submit(REQUESTS[2])
    model.open()
    assert answers([other]) == expected()[2:3]
    service.close()
    assert service.status().cache_use == 0


def test_the_best_so_far_is_taken():
    clock = Clock()
    model, service = gated(name="greedy", clock=clock)
    futures = at_the_gate(model, service, REQUESTS[:3], timeout=2, on_deadline="best")
    clock.now += 2
    model.open()
    whole = expected("greedy")
    for i, future in enumerate(futures):
        served = future.result(WAIT_SECONDS)
        assert served.times.total == 2
        assert (served.reason, served.result.stop_reason) == ("deadline", "interrupted")
        [one] = served.result.hypotheses
        assert not one.ended
        assert one.tokens == whole[i][0][0].tokens[: len(one.tokens)] != []
    service.close()


def test_there_is_no_best_so_far_of_what_has_not_begun():
    clock = Clock()
    model, service = gated(schedule=pybeam.Fifo(1), clock=clock)
    [first] = at_the_gate(model, service, REQUESTS[:1])
    waits = service.submit(REQUESTS[1], timeout=1, on_deadline="best")
    clock.now += 1
    model.open()
    with pytest.raises(DeadlineExceeded):
        waits.result(WAIT_SECONDS)
    assert answers([first]) == expected()[:1]
    service.close()


def ticking(clock, schedule, **options):
    """A gated model whose steps take a hundredth of a second, and a millisecond more for each row."""
    model, service = gated(schedule=schedule, clock=clock, **options)
    call = model.fn

    def slow(prefixes, lengths, source_ids):
        clock.now += 0.01 + 0.001 * len(prefixes)
        return call(prefixes, lengths, source_ids)

    model.fn = slow
    return model, service


def test_the_best_so_far_leaves_a_step_before_its_deadline():
    """When steps are known to take so long that the next one would end behind it."""
    clock = Clock()
    _, service = ticking(clock, pybeam.Fifo(4), name="greedy")
    answers([service.submit(request) for request in REQUESTS])
    long = pybeam.Request([1], source_id=1, min_length=199, max_length=200)
    began = clock.now
    served = service.submit(long, timeout=1.0, on_deadline="best").result(WAIT_SECONDS)
    assert (served.reason, served.result.stop_reason) == ("deadline", "interrupted")
    assert 0.9 < clock.now - began <= 1.0
    service.close()


def test_a_step_that_is_longer_than_any_before_leaves_no_best_so_far():
    """By the clock on the wall: its caller hears of it while the step still waits at the gate."""
    model, service = gated(name="greedy")
    answers([service.submit(request) for request in REQUESTS])
    [future] = at_the_gate(model, service, REQUESTS[:1], timeout=0.02, on_deadline="best")
    with pytest.raises(DeadlineExceeded, match="has passed"):
        future.result(WAIT_SECONDS)
    assert not model.gate.is_set()
    model.open()
    wait_for(lambda: service.status().num_running == 0)
    assert answers([service.submit(REQUESTS[1])]) == expected("greedy")[1:2]
    service.close()


def test_what_is_expected_to_be_late_does_not_begin_beside_others():
    clock = Clock()
    model, service = ticking(clock, pybeam.Fifo(4))
    for _ in range(2):
        answers([service.submit(request) for request in REQUESTS])
    wait_for(lambda: service.status().num_running == 0)
    # alone, it begins: expectations may be wrong, and are never corrected otherwise
    with pytest.raises(DeadlineExceeded, match="has passed"):
        service.submit(REQUESTS[5], timeout=0.011).result(WAIT_SECONDS)
    [other] = at_the_gate(model, service, REQUESTS[6:7])
    num_calls = len(model.calls)
    forecast = service._groups["default"].queue.deadlines.forecast
    for _ in range(NUM_STEPS):
        # a request that is alone takes long, too
        forecast.stepped(forecast.rows(4), 0.1, clock.now)
    hopeless = service.submit(REQUESTS[7], timeout=0.02)
    hopeful = service.submit(REQUESTS[8], timeout=1000)
    model.open()
    with pytest.raises(
        DeadlineExceeded, match=r"expected to take .* longer than its `timeout` of"
    ) as caught:
        hopeless.result(WAIT_SECONDS)
    assert caught.value.retry_after is None, "it is too short for a request that is alone, too"
    assert answers([other, hopeful]) == [expected()[6], expected()[8]]
    assert not [calls for calls in model.calls[num_calls:] if 7 in calls]
    service.close()


@pytest.mark.slow
def test_who_waits_hears_that_it_will_be_late_before_it_is():
    """And after how long it may come again: when those before it have begun."""
    clock = Clock()
    model, service = ticking(clock, pybeam.Fifo(1))
    for _ in range(2):
        answers([service.submit(request) for request in REQUESTS])
    wait_for(lambda: service.status().num_running == 0)
    [first] = at_the_gate(model, service, REQUESTS[6:7])
    others = [service.submit(request) for request in REQUESTS]
    waits = service.submit(REQUESTS[7], timeout=1.0)
    clock.now += 0.5
    service._groups["default"].look()
    assert not waits.done()
    clock.now += 0.45
    service._groups["default"].look()
    with pytest.raises(DeadlineExceeded, match="send it again in") as caught:
        waits.result(0)
    # a step takes 14 ms, and a request at least 5 of them
    assert 0.5 < caught.value.retry_after < 5.0
    model.open()
    assert answers([first, *others]) == [expected()[6], *expected()]
    service.close()


@pytest.mark.slow
def test_a_burst_after_lonely_requests_is_answered():
    """The times of lonely requests say nothing about the crowd, in which all take longer."""

    def burst(timeout):
        clock = Clock()
        model, service = ticking(clock, pybeam.Fifo(32))
        for i in range(40):
            answers([service.submit(REQUESTS[i % 17])])
        model.shut()
        began = clock.now
        futures = [service.submit(REQUESTS[i % 17], timeout=timeout) for i in range(128)]
        model.until_a_step_waits()
        model.open()
        found = answers(futures)
        service.close()
        return found, clock.now - began

    found, seconds = burst(None)
    assert burst(1.05 * seconds) == (found, pytest.approx(seconds, rel=0.04))


def queue_without_engines(clock):
    return ModelQueue("", Limits(1000, None, 10.0, None), clock, None, lambda at: None)


def submitted(queue, timeout=None, **options):
    """A ticket that waits in the queue."""
    now = queue.clock()
    deadline = None if timeout is None else now + timeout
    found = Ticket(
        request=REQUESTS[0], cost=Cost(1, 1), submitted=now, deadline=deadline, **options
    )
    queue.submit(found)
    return found


def test_who_takes_the_best_so_far_waits_without_looks(monkeypatch):
    """It begins in any case, however late it is expected to be."""
    clock, looks = Clock(), []
    queue = queue_without_engines(clock)

    def outlook(*_):
        looks.append(clock.now)
        return Outlook(50.0, 1.0, 50.0)

    monkeypatch.setattr(Forecast, "outlook", outlook)
    tickets = [submitted(queue, 2.0, wants_best=True) for _ in range(100)]
    for _ in range(1000):
        clock.now += 0.001
        queue.expire()
    assert len(looks) <= 200
    assert not any(one.future.done() for one in tickets)
    clock.now += 1.001
    queue.expire()
    for one in tickets:
        with pytest.raises(DeadlineExceeded, match="has passed"):
            one.future.result(0)


def test_who_was_expected_to_be_late_and_begins_is_late_like_any_other(monkeypatch):
    """Expectations change: its caller hears nothing of one that no longer holds."""
    outlooks = [Outlook(50.0, 0.1, 500.0)]
    monkeypatch.setattr(Forecast, "outlook", lambda *_: outlooks[-1])
    clock = Clock()
    queue = queue_without_engines(clock)
    submitted(queue)
    assert queue.choose([], 0.0, clock.now)[0] is not None
    late = submitted(queue, 1.0)
    outlooks.append(Outlook(0.1, 0.1, 5.0))
    assert queue.choose([], 0.0, clock.now) == (late, [])
    clock.now += 2.0
    queue.expire()
    with pytest.raises(DeadlineExceeded, match="has passed") as caught:
        late.future.result(0)
    assert caught.value.retry_after is None


@pytest.mark.slow
def test_nobody_is_expected_to_take_more_steps_than_it_may(monkeypatch):
    """Its limit is its own, or that of the algorithm."""
    asked = []
    outlook = Forecast.outlook

    def heard(forecast, tokens, most_steps, *others):
        asked.append(most_steps)
        return outlook(forecast, tokens, most_steps, *others)

    monkeypatch.setattr(Forecast, "outlook", heard)

    def most_steps(request, algorithm):
        asked.clear()
        with pybeam.Service(pybeam.Decoder(MODEL, algorithm)) as service:
            service.submit(request, timeout=1e6).result(WAIT_SECONDS)
        return set(asked)

    search, by_source = pybeam.greedy(max_length=7), pybeam.limits.SourceLimit(2, 1)
    source = [1, 1, 1]
    for request, algorithm, most in (
        (source, search, 7),
        (pybeam.Request(source, max_length=9), search, 9),
        (pybeam.Request(source, max_length=by_source), search, 7),
        (source, pybeam.greedy(max_length=by_source), 7),
        (source, pybeam.greedy(), math.inf),
        (pybeam.Request(source, target=[3]), search, 2),
    ):
        assert most_steps(request, algorithm) == {most}
    for wrong in (dict(target=5), dict(max_length="a"), dict(max_length=-5)):
        with pytest.raises((TypeError, ValueError), match=f"`{next(iter(wrong))}`"):
            most_steps(pybeam.Request(source, **wrong), search)
        assert set(asked) == {math.inf}


def test_the_pace_forgets():
    speed = SpeedEstimate()
    assert speed.seconds_for(100) == 1.0
    speed.begin(0.0)
    for i in range(1, 50):
        speed.done(Cost(10, 4), 2.0 * i)
    assert speed.seconds_for(80) == pytest.approx(4.0)
    speed.begin(1000.0)
    for i in range(1, 200):
        speed.done(Cost(10, 4), 1000.0 + i)
    assert speed.seconds_for(80) == pytest.approx(2.0, rel=0.01)
