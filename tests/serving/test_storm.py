"""Everything at once, on a real model: whole results are those of `Decoder.decode`, to the last bit."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import CancelledError

import pytest

import pybeam
from pybeam.serving import DeadlineExceeded, QueueFull, ServedResult
from support.gates import WAIT_SECONDS
from support.paths import ROOT
from support.served import told, wait_for

SEARCHES = {
    "beam": pybeam.variable_beam(4, threshold=3.0, max_length=12),
    "greedy": pybeam.greedy(max_length=12),
}
SCHEDULES = {"beam": pybeam.Fifo(6), "greedy": pybeam.Fifo(tokens=60)}


@pytest.fixture(scope="module")
def model():
    return pybeam.load_model(ROOT / "examples" / "models" / "bible-es-en")


def requests_for(model):
    rng = random.Random(0)
    ids = range(4, model.config.source_vocab_size)
    return [[*rng.choices(ids, k=rng.randint(1, 12)), model.eos_id] for _ in range(20)]


class Caller:
    """One who does all that callers may do, in an order that a seed gives."""

    def __init__(self, service, requests, seed):
        self._service, self._requests = service, requests
        self._rng = random.Random(seed)
        self.whole = []  # model, number of the request, result
        self.ends = []

    def options(self):
        rng = self._rng
        return dict(
            model=rng.choice(list(SEARCHES)),
            timeout=rng.choice([None, None, 0.0, 0.01, 0.1, 30.0]),
            priority=rng.randrange(3),
            client=rng.choice([None, "a", "b"]),
            on_deadline=rng.choice(["raise", "best"]),
        )

    def note(self, options, number, served):
        self.ends.append(served.reason)
        if served.reason == "finished":
            self.whole.append((options["model"], number, told(served.result)))

    def as_a_thread(self, count):
        for _ in range(count):
            options, number = self.options(), self._rng.randrange(len(self._requests))
            try:
                future = self._service.submit(self._requests[number], **options)
                if self._rng.random() < 0.2:
                    future.cancel()
                self.note(options, number, future.result(WAIT_SECONDS))
            except (QueueFull, DeadlineExceeded, CancelledError) as error:
                self.ends.append(type(error))

    async def as_tasks(self, count):
        await asyncio.gather(*(self.as_a_task() for _ in range(count)))

    async def as_a_task(self):
        options, number = self.options(), self._rng.randrange(len(self._requests))
        patience = self._rng.choice([0.005, 0.05, WAIT_SECONDS])
        try:
            async with asyncio.timeout(patience):
                await self.follow(options, number)
        except (QueueFull, TimeoutError) as error:
            self.ends.append(type(error))

    async def follow(self, options, number):
        best = self._rng.random() < 0.5
        async for event in self._service.stream(
            self._requests[number], best_so_far=best, **options
        ):
            if isinstance(event, ServedResult):
                self.note(options, number, event)
            elif self._rng.random() < 0.02:
                return


@pytest.mark.slow
@pytest.mark.parametrize("engines", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_storm(model, engines):
    requests = requests_for(model)
    decoders = {
        name: pybeam.Decoder(model, search, SCHEDULES[name]) for name, search in SEARCHES.items()
    }
    expected = {
        name: [told(result) for result in one.decode(requests)] for name, one in decoders.items()
    }
    service = pybeam.Service(decoders, engines=engines, max_waiting=30, ageing=0.05).start()
    callers = [Caller(service, requests, seed) for seed in range(4)]
    threads = [
        *(threading.Thread(target=one.as_a_thread, args=[10]) for one in callers[:2]),
        *(threading.Thread(target=lambda c=c: asyncio.run(c.as_tasks(20))) for c in callers[2:]),
    ]
    for thread in threads:
        thread.start()
    service.swap("beam", pybeam.Decoder(model, SEARCHES["beam"], SCHEDULES["beam"]))
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    for name in SEARCHES:
        wait_for(lambda name=name: not service.status(name).num_running)
        status = service.status(name)
        assert (status.num_waiting, status.waiting_work, status.cache_use) == (0, 0, 0)
    service.close()
    whole = [each for caller in callers for each in caller.whole]
    assert whole
    for name, number, result in whole:
        assert result == expected[name][number]
    # nobody was forgotten: each thread's request has an end
    assert [len(caller.ends) for caller in callers[:2]] == [10, 10]
