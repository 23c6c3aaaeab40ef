"""A service gives the results of `Decoder.decode`, to threads and to tasks, whatever runs beside them."""

from __future__ import annotations

import asyncio
import threading

import pytest

import pybeam
from pybeam.serving import BestSoFar, Certain
from support.laws import ALGORITHMS, essence
from support.search_models import random_model

MODEL = random_model(7, 9, eos_bonus=0.3)
REQUESTS = [pybeam.Request([1] * (1 + i * 7 % 5), source_id=i) for i in range(17)]
WAIT_SECONDS = 20


def decoder(name="fixed", schedule=None, model=MODEL):
    return pybeam.Decoder(model, ALGORITHMS[name], schedule or pybeam.Fifo(4))


def told(result):
    """What does not depend on the order of requests."""
    return essence([result])[0][1:]


EXPECTED = [told(result) for result in decoder().decode(REQUESTS)]


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

    for events, expected in zip(asyncio.run(follow_all()), EXPECTED, strict=True):
        *news, served = events
        assert told(served.result) == expected
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
