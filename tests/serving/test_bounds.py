"""The queue is bounded, costs are known before, and options that are wrong are refused."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from functools import partial

import pytest

import pybeam
from pybeam.serving import Cost, Listener, QueueFull, ServiceClosed
from support.gates import WAIT_SECONDS, Clock
from support.search_models import random_model
from support.served import REQUESTS, answers, decoder, expected, gated, told, wait_for


def busy(**options):
    """A service of one place, which is taken by a request whose step waits at the gate."""
    model, service = gated(schedule=pybeam.Fifo(1), **options)
    model.shut()
    future = service.submit(REQUESTS[0])
    model.until_a_step_waits()
    return model, service, future


def test_a_limit_in_requests():
    model, service, first = busy(max_waiting=2)
    futures = [first, service.submit(REQUESTS[1]), service.submit(REQUESTS[2])]
    with pytest.raises(QueueFull, match="`max_waiting` is 2") as caught:
        service.submit(REQUESTS[3])
    assert (caught.value.limit, caught.value.retry_after) == ("max_waiting", 1.0)
    assert futures[1].cancel()
    futures.append(service.submit(REQUESTS[3]))
    model.open()
    assert answers([first, futures[2], futures[3]]) == [expected()[i] for i in (0, 2, 3)]
    service.close()


def test_a_limit_in_work():
    """Source tokens times width; what is too much alone may wait alone."""
    model, service, first = busy(max_waiting_work=20)
    large = service.submit(pybeam.Request([1] * 9, source_id=1))
    with pytest.raises(QueueFull, match="`max_waiting_work` is 20, and 36 is waiting") as caught:
        service.submit(pybeam.Request([1], source_id=1))
    assert caught.value.limit == "max_waiting_work"
    assert large.cancel()
    two = [service.submit(pybeam.Request([1, 1], source_id=i)) for i in (1, 2)]
    assert service.status().waiting_work == 16
    with pytest.raises(QueueFull):
        service.submit(pybeam.Request([1, 1], source_id=3))
    narrow = service.submit(pybeam.Request([1, 1], width=2, n_best=2, source_id=3))
    model.open()
    answers([first, *two, narrow])
    service.close()


def test_those_of_a_lower_level_give_way():
    """The lowest of them first, and then the last. Nobody gives way to an equal."""
    clock = Clock()
    model, service, first = busy(max_waiting=3, clock=clock)
    older = service.submit(REQUESTS[1], priority=-1)
    clock.now += 10.0  # it rises a level
    low = [service.submit(REQUESTS[2], priority=priority) for priority in (-2, -1)]
    assert not service.has_room
    for refuse in (service.check_room, partial(service.submit, REQUESTS[0])):
        with pytest.raises(QueueFull):
            refuse(priority=-2)
    service.check_room(priority=0)
    kept = []
    for gives_way in low:
        assert not gives_way.done()
        kept.append(service.submit(REQUESTS[0]))
        assert isinstance(gives_way.exception(0), QueueFull)
    with pytest.raises(QueueFull):
        service.submit(REQUESTS[0])
    model.open()
    answers([first, older, *kept])
    service.close()


def test_work_gives_way_to_what_is_more_important():
    """No more of it than must, and none if that is not enough."""
    model, service, first = busy(max_waiting_work=20)
    low, equal = (service.submit(pybeam.Request([1, 1]), priority=p) for p in (-1, 0))
    with pytest.raises(QueueFull, match="`max_waiting_work` is 20, and 16"):
        service.submit(pybeam.Request([1] * 4))
    assert not low.done()
    third = service.submit(pybeam.Request([1] * 3))
    assert isinstance(low.exception(0), QueueFull)
    model.open()
    answers([first, equal, third])
    service.close()


def test_the_estimate_of_the_wait():
    """From the work that was done in the time that it took."""
    clock = Clock()
    model, service, first = busy(max_waiting=3, clock=clock)
    cost = service.estimate(REQUESTS[0])
    assert cost == Cost(1, 4)
    clock.now += 2.0  # for 4 units of work
    model.open()
    answers([first])
    wait_for(lambda: service.status().num_running == 0)
    model.shut()
    futures = [service.submit(REQUESTS[0])]
    model.until_a_step_waits()
    futures += [service.submit(pybeam.Request([1] * n)) for n in (3, 4, 5)]
    with pytest.raises(QueueFull, match="try again in 24") as caught:
        service.submit(REQUESTS[0])
    assert caught.value.retry_after == 24.0
    model.open()
    answers(futures)
    service.close()


def test_costs_are_known_before():
    with pybeam.Service({"a": decoder(), "b": decoder("greedy")}) as service:
        assert service.models == ("a", "b")
        assert service.estimate([1, 2, 3], model="a") == Cost(3, 4)
        assert service.estimate([1, 2, 3], model="b").work == 3
        assert service.estimate(pybeam.Request([1, 2], width=2), model="a") == Cost(2, 2)
        assert service.estimate(pybeam.Request([1, 2], target=[3]), model="a") == Cost(2, 1)
        assert service.estimate([], model="a").work == 1
        with pytest.raises(ValueError, match="`model` must be one of a, b"):
            service.estimate([1])
        with pytest.raises(ValueError, match="'c'"):
            service.submit([1], model="c")


@pytest.mark.parametrize(
    "options",
    [
        dict(timeout="1"),
        dict(timeout=float("nan")),
        dict(timeout=float("inf")),
        dict(priority=1.5),
        dict(priority=True),
        dict(on_deadline="maybe"),
        dict(client=[]),
        dict(deadline=3),
    ],
    ids=str,
)
def test_options_that_are_wrong(options):
    with (
        pybeam.Service(decoder()) as service,
        pytest.raises((TypeError, ValueError), match=f"{next(iter(options))}|hash"),
    ):
        service.submit([1], **options)


@pytest.mark.parametrize(
    "arguments",
    [
        dict(max_waiting=0),
        dict(max_waiting_work=0),
        dict(ageing=0),
        dict(max_step_seconds=-1),
        dict(width_by_load={0: 1}),
        dict(width_by_load={1: 0}),
        dict(decoders={}),
        dict(decoders=3),
        dict(decoders={"a": 3}),
    ],
    ids=str,
)
def test_arguments_that_are_wrong(arguments):
    with pytest.raises((TypeError, ValueError), match=f"`{next(iter(arguments))}`"):
        pybeam.Service(**{"decoders": decoder(), **arguments})


def test_a_service_that_does_not_run_takes_nothing():
    service = pybeam.Service(decoder())
    with pytest.raises(ServiceClosed, match="new"):
        service.submit([1])
    with service:
        with pytest.raises(ServiceClosed, match="once"):
            service.start()
    with pytest.raises(ServiceClosed, match="closed"):
        service.submit([1])


def test_priorities_ages_and_clients_decide_who_is_next():
    """The line is tested on its own; here it decides what a busy engine takes."""
    clock = Clock()
    model, service, first = busy(ageing=10.0, clock=clock)
    old = service.submit(REQUESTS[1])
    clock.now += 15
    options = [{}, dict(priority=2), dict(priority=1), dict(client="a"), dict(client="a")]
    futures = [service.submit(REQUESTS[i + 2], **one) for i, one in enumerate(options)]
    model.open()
    assert answers([first, old, *futures]) == expected()[:7]
    begun = []
    for calls in model.calls:
        begun += sorted(calls - {-1, *begun})
    # all but the client's two requests count as one client, which has had its turn
    assert begun == [0, 3, 1, 4, 5, 6, 2] or begun == [0, 3, 1, 4, 5, 2, 6]
    service.close()


def test_beams_are_narrow_while_many_wait():
    model, service, first = busy(name="power", width_by_load={2: 3, 4: 1})
    requests = [pybeam.Request([1], n_best=1 + i % 3, source_id=i) for i in range(7)]
    futures = [service.submit(request) for request in requests]
    model.open()
    results = [future.result(WAIT_SECONDS) for future in (first, *futures)]
    # 6, 5, 4, … others wait when each of them begins
    assert [one.width for one in results] == [5, 1, 2, 3, 3, 3, 5, 5]
    plain = decoder("power")
    for request, served in zip(requests, results[1:], strict=True):
        [result] = plain.decode([dataclasses.replace(request, width=served.width)])
        assert told(served.result) == told(result)
    service.close()


def test_widths_by_step_are_cut_step_by_step():
    model, service, first = busy(name="power", width_by_load={1: 3})
    request = pybeam.Request([1], width=[2, 8, 5], n_best=2, source_id=1)
    assert service.estimate(request) == Cost(1, 8)
    narrow, last = service.submit(request), service.submit(request)
    model.open()
    results = [future.result(WAIT_SECONDS) for future in (first, narrow, last)]
    assert [one.width for one in results] == [5, 3, 5]
    plain = decoder("power")
    for width, served in zip(([2, 3, 3], [2, 8, 5]), results[1:], strict=True):
        [result] = plain.decode([dataclasses.replace(request, width=width)])
        assert told(served.result) == told(result)
    service.close()


def test_a_listener_hears_of_everything_and_may_fail():
    heard = []

    class Ear(Listener):
        def __getattribute__(self, name):
            def notify(*facts):
                heard.append((name, *facts))
                raise RuntimeError("metrics are broken")

            return notify if name.startswith("on_") else super().__getattribute__(name)

    model, service, first = busy(name="greedy", max_waiting=1, listener=Ear())
    gone = service.submit(REQUESTS[1])
    with pytest.raises(QueueFull):
        service.submit(REQUESTS[2])
    gone.cancel()
    model.open()
    answers([first])

    async def follow():
        return [event async for event in service.stream(REQUESTS[3])]

    *_, served = asyncio.run(follow())
    bad = service.submit(pybeam.Request([1], width=5000))
    with pytest.raises(ValueError, match="width"):
        bad.result(WAIT_SECONDS)
    service.close()
    cost = Cost(1, 1)
    assert [facts for facts in heard if facts[0] == "on_rejected"] == [
        ("on_rejected", "default", "max_waiting")
    ]
    assert next(facts[2] for facts in heard if facts[0] == "on_queued") == cost
    assert len([facts for facts in heard if facts[0] == "on_started"]) == 3
    finished = [facts[2:] for facts in heard if facts[0] == "on_finished"]
    assert [reason for reason, *_ in finished] == ["cancelled", "finished", "finished", "error"]
    assert finished[2][2].steps == served.times.steps
    assert finished[2][3] == len(served.result.hypotheses[0].tokens)
    certain = [facts[2] for facts in heard if facts[0] == "on_certain"]
    assert certain == sorted(set(certain)) != []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness for each thread")
@pytest.mark.parametrize("processes", [False, True])
def test_what_decodes_is_nicer_than_what_speaks(tmp_path, processes):
    """A processor says how nice the thread is that calls it."""

    def note(logits, rows):
        (tmp_path / "nice").write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))
        return logits

    before = os.getpriority(os.PRIO_PROCESS, 0)
    noted = [pybeam.processors.from_function(note)]
    own = pybeam.Decoder(random_model(3, 7), pybeam.greedy(max_length=2, processors=noted))
    with pybeam.Service(own, processes=processes, nice=3) as service:
        service.submit([1]).result(WAIT_SECONDS)
        assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert int((tmp_path / "nice").read_text()) == min(19, before + 3)
