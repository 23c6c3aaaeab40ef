"""Requests are freed when they have been answered. A collection of those that are not stops all others."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import weakref

import pytest

from pybeam.server.sse import Presence
from pybeam.serving.engine_group import EngineGroup
from pybeam.serving.ticket import Ticket
from support import server_app
from support.gates import WAIT_SECONDS

TEXT = "Jesús lloró."


async def ask(app, body) -> int:
    """Send a request as a connection does, in a task of its own. Returns the status."""
    messages, statuses = [{"type": "http.request", "body": json.dumps(body).encode()}], []

    async def receive():
        return messages.pop() if messages else await asyncio.Future()

    async def send(message):
        statuses.extend([message["status"]] if "status" in message else [])

    state = {"arrived": time.monotonic(), "is_whole": True, "presence": Presence()}
    path, headers = "/v1/translations", [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "state": state}
    scope |= {"query_string": b"", "client": None, "root_path": ""}
    await asyncio.create_task(app(scope, receive, send))
    return statuses[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("timeout, status", [(60, 200), (1e-6, 504), (0.02, 504)])
def test_no_answer_leaves_its_request_to_the_garbage_collector(
    monkeypatch, timeout, status, stream
):
    """Neither one that is answered, nor one whose time is over before or while nobody decodes it."""
    tickets = []
    begin = Ticket.__post_init__

    def noted(ticket):
        begin(ticket)
        tickets.append(weakref.ref(ticket))

    monkeypatch.setattr(Ticket, "__post_init__", noted)
    if status == 504:
        # the engines never answer, and a timer does
        monkeypatch.setattr(EngineGroup, "start", lambda group: None)
        monkeypatch.setattr(EngineGroup, "join", lambda group, timeout: True)

    async def test(http):
        body = {"text": TEXT, "timeout": timeout, "stream": stream}
        for _ in range(3):
            assert await ask(http.app, body) == status
        # threads have to leave their functions
        end = time.monotonic() + WAIT_SECONDS
        while any(one() is not None for one in tickets) and time.monotonic() < end:
            await asyncio.sleep(0.001)
        assert [one() for one in tickets] == [None] * 3

    gc.disable()
    try:
        server_app.run(test)
    finally:
        gc.enable()
