"""A service gives the results of `Decoder.decode`, to threads and to tasks, whatever runs beside them."""

from __future__ import annotations

import asyncio
import threading

import pytest

import pybeam
from pybeam.serving import BestSoFar, Certain
from support.gates import WAIT_SECONDS
from support.served import REQUESTS, decoder, expected, told

EXPECTED = expected()


@pytest.fixture
def service():
    with pybeam.Service(decoder()) as service:
        yield service


def test_futures(service):
    futures = [service.submit(request) for request in REQUESTS]
    served = [future.result(WAIT_SECONDS) for future in futures]
    assert [told(one.result) for one in served] == EXPECTED
    for one in served:
        assert one.reason == "finished"
        assert one.times.steps == one.result.steps
        assert one.times.rows * one.times.steps == pytest.approx(one.result.expansions)


def test_it_says_what_it_is_and_does(service):
    own = decoder()
    expected = f"'default': EngineGroup({own!r}, 1 engine, 0 taken, 0 wait)"
    service.submit(REQUESTS[0]).result(WAIT_SECONDS)
    assert repr(service) == f"Service(running, {{{expected}}})"
    assert repr(pybeam.Service(own)) == f"Service(new, {{{expected}}})"


def test_tasks_and_threads_together(service):
    async def ask():
        served = await asyncio.gather(*(service.decode(request) for request in REQUESTS))
        return [told(one.result) for one in served]

    answers = []
    threads = [threading.Thread(target=lambda: answers.append(asyncio.run(ask()))) for _ in "ab"]
    for thread in threads:
        thread.start()
    futures = [service.submit(request) for request in REQUESTS]
    assert [told(one.result(WAIT_SECONDS).result) for one in futures] == EXPECTED
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert answers == [EXPECTED] * 2


@pytest.mark.parametrize("best", [False, True])
def test_a_stream_says_what_is_certain(service, best):
    async def follow(request):
        return [event async for event in service.stream(request, best_so_far=best)]

    async def follow_all():
        return await asyncio.gather(*map(follow, REQUESTS))

    for events, result in zip(asyncio.run(follow_all()), EXPECTED, strict=True):
        *news, served = events
        assert told(served.result) == result
        tokens = served.result.hypotheses[0].tokens
        certain = []
        for event in news:
            if isinstance(event, Certain):
                assert event.tokens[: len(certain)] == certain != event.tokens
                certain = event.tokens
            else:
                assert best and isinstance(event, BestSoFar)
                assert event.tokens[: len(certain)] == certain
        assert tokens[: len(certain)] == certain
