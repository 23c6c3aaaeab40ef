"""The time of a request begins when it has come, whoever was busy then, and answers wait for few others."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from functools import partial

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pybeam.server.connections import STARTS, Starts, bounded
from pybeam.server.settings import Settings
from support import server_app

SLEEP, TICKS = 0.1, 0.02
REQUEST = b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how long bytes have been here")
def test_the_time_in_which_nobody_read_counts():
    """That of a whole request; the time in which its body had not come is its client's own."""
    seen, spans = [], []

    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            pass
        seen.append(time.monotonic() - scope["state"]["arrived"])

    async def whole():
        loop, config = asyncio.get_running_loop(), uvicorn.Config(app)
        protocol = partial(bounded(Settings()), config, ServerState(), {})
        async with await loop.create_server(protocol, "127.0.0.1", 0) as server:
            for parts in ((REQUEST + b"{}",), (REQUEST + b"{", b"}")):
                with socket.create_connection(server.sockets[0].getsockname()) as connection:
                    begun = time.monotonic()
                    for part in parts:
                        connection.sendall(part)
                        # the loop stands still
                        time.sleep(SLEEP)
                    number = len(seen)
                    async with asyncio.timeout(30):
                        while len(seen) == number:
                            await asyncio.sleep(0.001)
                    spans.append(time.monotonic() - begun)

    asyncio.run(whole())
    assert len(seen) == 2 and min(seen) > SLEEP - TICKS
    assert seen[1] < spans[1] - SLEEP / 2


@pytest.mark.parametrize(("timeout", "status"), [(4, 504), (60, 200)])
def test_who_comes_too_late_is_not_decoded(timeout, status):
    async def ask(http):
        app = http.app

        async def late(scope, receive, send):
            await app({**scope, "state": {"arrived": time.monotonic() - 5}}, receive, send)

        transport = httpx.ASGITransport(late)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"text": "Jesús lloró.", "timeout": timeout}
            answer = await client.post("/v1/translations", json=body)
        return answer, app.state.calls.service.status().num_steps

    answer, num_steps = server_app.run(ask)
    assert answer.status_code == status, answer.text
    assert bool(num_steps) == (status == 200)
    if status == 504:
        assert "`timeout` of 4 seconds has passed" in answer.json()["error"]["message"]


def test_uvicorn_begins_a_request_where_ours_may_wait():
    """By a name of its own, which versions before 0.45 lack and later ones may change."""
    assert "_start_asgi_task" in vars(HttpToolsProtocol)


def test_few_requests_begin_in_a_turn_of_the_loop():
    """In their order; at once while they are few."""
    begun: list[int] = []

    async def whole():
        loop, starts, turns = asyncio.get_running_loop(), Starts(), []
        for i in range(3 * STARTS + 1):
            starts.add(loop, partial(begun.append, i))
        while not turns or len(begun) > turns[-1]:
            turns.append(len(begun))
            await asyncio.sleep(0)
        starts.add(loop, partial(begun.append, 3 * STARTS + 1))
        return [*turns, len(begun)]

    turns = asyncio.run(whole())
    assert turns == [STARTS, 2 * STARTS, 3 * STARTS, 3 * STARTS + 1, 3 * STARTS + 2]
    assert begun == list(range(3 * STARTS + 2))
