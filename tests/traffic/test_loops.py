"""When requests are sent, and which count."""

import asyncio
import itertools
import statistics
import time

import pytest

from pybeam.traffic import Clients, Summary, Window, arrivals, closed_loop, open_loop, post
from support.late_server import OK, LateServer

PAUSE = 0.05
CONTENT = post("/", {})


def send(server: LateServer, loop, *load, timeout: float = 60.0) -> list:
    found = []

    async def whole():
        async with Clients(server.address, timeout=timeout) as clients:
            await loop(clients, *load, lambda *one: found.append(one))

    asyncio.run(whole())
    return found


def test_latency_counts_from_when_a_request_is_due():
    server = LateServer(OK, pause=PAUSE, is_serial=True)
    answers = [one for _, one in send(server, open_loop, [CONTENT] * 4, [0.0] * 4)]
    assert [one.status for one in answers] == [200] * 4
    # each waits for those before it
    for place, one in enumerate(sorted(answers, key=lambda one: one.latency), start=1):
        assert one.latency >= place * PAUSE


def test_a_server_that_falls_behind_delays_no_request_and_pays_for_each():
    server = LateServer(OK, pause=PAUSE, is_serial=True)
    due = [PAUSE / 2 * i for i in range(8)]
    found = send(server, open_loop, [CONTENT] * 8, due, timeout=3 * PAUSE)
    assert sorted(moment for moment, _ in found) == due
    # a loop that waits for answers would be later with each
    assert statistics.median(one.lag for _, one in found) < PAUSE
    # those that wait for longer than clients do
    late = [one for _, one in found if not one.status]
    assert late and all(3 * PAUSE <= one.latency for one in late)


def test_a_client_that_is_late_says_so():
    async def whole():
        async with Clients(LateServer(OK).address) as clients:
            await clients.ask(CONTENT)
            asyncio.get_running_loop().call_later(0.01, time.sleep, 4 * PAUSE)
            await open_loop(clients, [CONTENT] * 2, [0.0, 0.02], summary.add)

    summary = Summary(Window())
    asyncio.run(whole())
    assert max(summary.lags) > 3 * PAUSE
    assert "late" in summary.slowness(0.0)


def test_arrivals_are_those_of_a_seed_at_a_rate():
    moments = list(itertools.islice(arrivals(50.0, 3), 4000))
    assert moments == list(itertools.islice(arrivals(50.0, 3), 4000))
    assert moments[:9] != list(itertools.islice(arrivals(50.0, 4), 9))
    gaps = [after - before for before, after in itertools.pairwise([0.0, *moments])]
    # of an exponential distribution both are the mean
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.1)


@pytest.mark.parametrize(
    "window, num_sent, num_counted",
    [
        (Window(), 10, 10),
        (Window(seconds=5.0), 6, 6),
        (Window(2.0, 5.0), 8, 6),
        (Window(2.0, requests=3), 5, 3),
        (Window(requests=1), 1, 1),
    ],
)
def test_windows(window, num_sent, num_counted):
    sent = list(itertools.takewhile(window.takes, map(float, range(10))))
    assert len(sent) == num_sent and sum(map(window.counts, sent)) == num_counted


def test_so_many_requests_of_a_closed_loop_count():
    window = Window(warm_up=PAUSE, requests=5)
    server = LateServer(OK, pause=0.01)
    found = send(server, closed_loop, itertools.repeat(CONTENT), 3, window)
    assert sum(moment >= PAUSE for moment, _ in found) == 5
    assert len(found) > 5 and server.num_connections == 3
