"""A request whose time is over ends, wherever it is, with an error or with the best so far."""

from __future__ import annotations

import pytest

import pybeam
from pybeam.serving import DeadlineExceeded
from pybeam.serving.answers import Cost, Times
from pybeam.serving.pace import MARGIN, Pace
from support.gates import WAIT_SECONDS, Clock
from support.served import REQUESTS, answers, expected, gated, wait_for


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
    with pytest.raises(DeadlineExceeded, match="`timeout` is"):
        future.result(0)
    with pytest.raises(TimeoutError):
        future.result(0)
    service.close()
    assert not model.calls


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
    clock.now += 3
    model.open()
    whole = expected("greedy")
    for i, future in enumerate(futures):
        served = future.result(WAIT_SECONDS)
        assert served.times.total == 3
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


def test_what_is_not_expected_to_be_done_in_time_does_not_begin_beside_others():
    clock = Clock()
    model, service = gated(clock=clock)
    [slow] = at_the_gate(model, service, REQUESTS[:1])
    clock.now += 8  # for a source of one token
    model.open()
    answers([slow])
    wait_for(lambda: service.status().num_running == 0)
    # alone, it begins: expectations may be wrong, and are never corrected otherwise
    assert answers([service.submit(REQUESTS[5], timeout=1)]) == expected()[5:6]
    [other] = at_the_gate(model, service, REQUESTS[6:7])
    hopeless = service.submit(REQUESTS[7], timeout=0.1)
    hopeful = service.submit(REQUESTS[8], timeout=1000)
    model.open()
    with pytest.raises(DeadlineExceeded):
        hopeless.result(WAIT_SECONDS)
    assert answers([other, hopeful]) == [expected()[6], expected()[8]]
    assert not [calls for calls in model.calls if 7 in calls]
    service.close()


def test_the_pace_forgets():
    pace = Pace()
    assert (pace.seconds_for(100), pace.seconds_of(Cost(9, 5), 1)) == (1.0, 0.0)
    pace.begin(0.0)
    for i in range(1, 50):
        pace.done(Cost(10, 4), Times(5.0, 0.5, 1.5), 2.0 * i, 4)
    assert pace.seconds_for(80) == pytest.approx(4.0)
    # four ran then; fewer make no request faster, more make all slower
    for number, seconds in ((1, 4.0), (4, 4.0), (6, 6.0)):
        assert pace.seconds_of(Cost(20, 1), number) == pytest.approx(MARGIN * seconds)
    pace.begin(1000.0)
    for i in range(1, 200):
        pace.done(Cost(10, 4), Times(0.0, 0.0, 1.0), 1000.0 + i, 8)
    assert pace.seconds_for(80) == pytest.approx(2.0, rel=0.01)
    assert pace.seconds_of(Cost(20, 1), 16) == pytest.approx(MARGIN * 4.0, rel=0.01)
