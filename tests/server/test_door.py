"""Where too many wait, requests are refused before anything is made of their bodies, and rightly so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from functools import partial

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from pybeam.server.audit import AuditLog
from pybeam.server.auth import Keys
from pybeam.server.calls import Calls
from pybeam.server.connections import bounded
from pybeam.server.door import LAG_SECONDS
from pybeam.server.key_file import table_of
from pybeam.server.settings import KeyLimits, Settings
from pybeam.serving.engine_group import EngineGroup
from support import server_app

TEXT = "Jesús lloró."
TRANSLATIONS = "/v1/translations"
# each path, and the least that its body must have
BODIES = {
    TRANSLATIONS: {"text": TEXT},
    "/v1/decode": {"source": TEXT},
    "/v1/score": {"source": TEXT, "target": TEXT},
    "/v1/completions": {"prompt": TEXT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/translate": {"q": TEXT, "source": "es", "target": "en"},
}


def name_of(path: str) -> str:
    return path.replace("/", ".")


@pytest.fixture
def understood(monkeypatch):
    """The bodies whose texts have become tokens, in a server where nobody decodes."""
    found, encode = [], Calls.encode

    async def noted(calls, model, text, *more):
        found.append(text)
        return await encode(calls, model, text, *more)

    monkeypatch.setattr(Calls, "encode", noted)
    monkeypatch.setattr(EngineGroup, "start", lambda group: None)
    monkeypatch.setattr(EngineGroup, "join", lambda group, timeout: True)
    return found


def crowded(test, ago=0.0, **options):
    """Run a test on a client whose requests have come whole, `ago` seconds before the server looks."""

    async def whole(http):
        async def arrived(scope, receive, send):
            first = await receive()
            while first.get("more_body"):
                more = await receive()
                first = {**more, "body": first["body"] + more["body"]}

            async def once():
                return messages.pop() if messages else await receive()

            messages = [first]
            state = {"arrived": time.monotonic() - ago, "is_whole": True}
            await http.app({**scope, "state": state}, once, send)

        transport = httpx.ASGITransport(arrived)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.app = http.app
            return await test(client)

    return server_app.run(whole, **options)


@contextlib.asynccontextmanager
async def waiting(client, **more):
    """A request that waits, as the only one that may."""
    task = asyncio.ensure_future(client.post(TRANSLATIONS, json={"text": TEXT}, **more))
    while not client.app.state.calls.service.status().num_waiting:
        await asyncio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()


def test_what_has_no_room_is_refused_before_it_is_understood(understood, tmp_path):
    """In the form of each API; with a key, an id, a count and a line of the audit log."""
    log = tmp_path / "audit.jsonl"
    headers = {"Authorization": "Bearer good"}

    async def test(client):
        async with waiting(client, headers=headers):
            answers = {
                path: await client.post(
                    path, json=body, headers=headers | {"X-Request-Id": name_of(path)}
                )
                for path, body in BODIES.items()
            }
            stranger = await client.post(TRANSLATIONS, json=BODIES[TRANSLATIONS])
            return answers, stranger, (await client.get("/metrics")).text

    options = {"max_waiting": 1, "keys": ("good",), "audit": AuditLog(str(log))}
    answers, stranger, metrics = crowded(test, **options)
    assert understood == [TEXT] and stranger.status_code == 401
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for path, answer in answers.items():
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1, path
        error = answer.json()["error"]
        assert "the queue is full" in (error if path == "/translate" else error["message"])
        assert path == "/translate" or error["type"] == "rate_limit_error"
        assert answer.headers["x-request-id"] == name_of(path)
        assert f'pybeam:http_answers_total{{path="{path}",status="429"}} 1.0' in metrics
        [line] = [one for one in lines if one["path"] == path and one["status"] == 429]
        assert line["key"] == "key-0" and line["request_bytes"] == len(answer.request.content)
    assert (
        f'requests_rejected_total{{limit="max_waiting",model_name="es-en"}} {len(BODIES)}'
        in metrics
    )


def test_what_the_door_cannot_tell_goes_on(understood):
    """Bodies that are wrong, long or no JSON, models that are none, and more than the server allows."""
    wrong = [
        ({"json": {"text": TEXT, "model": "none"}}, 404),
        ({"json": {"text": TEXT, "timeout": -1}}, 400),
        ({"json": {"text": TEXT, "timeout": 1e9}}, 400),
        ({"json": {"text": TEXT, "priority": 1}}, 400),
        ({"json": [TEXT]}, 400),
        ({"content": "{", "headers": {"Content-Type": "application/json"}}, 400),
        ({"content": json.dumps(BODIES[TRANSLATIONS])}, 400),
    ]

    async def test(client):
        async with waiting(client):
            for more, status in wrong:
                assert (await client.post(TRANSLATIONS, **more)).status_code == status, more
            long = await client.post(TRANSLATIONS, json={"text": [TEXT] * 2, "target": TEXT * 999})
            assert long.status_code == 400
            form = await client.post("/translate", data=BODIES["/translate"])
            assert form.status_code == 429

    crowded(test, max_waiting=1)
    assert len(understood) > 1


def test_a_key_in_a_body_is_looked_at_first(understood):
    async def test(client):
        async with waiting(client, headers={"Authorization": "Bearer good"}):
            body = BODIES["/translate"]
            for key, status in (("good", 429), ("bad", 401)):
                answer = await client.post("/translate", json={**body, "api_key": key})
                assert answer.status_code == status

    crowded(test, max_waiting=1, keys=("good",))


def test_what_is_important_is_not_refused_for_what_is_not(understood, tmp_path):
    """It takes the place of a request of lower priority, which is told so."""
    path = tmp_path / "keys.toml"
    limits = {"high": KeyLimits(max_priority=2), "low": KeyLimits()}
    path.write_text("".join(table_of(name, name, limit) for name, limit in limits.items()))

    async def test(client):
        high, low = ({"Authorization": f"Bearer {name}"} for name in limits)
        body = {"text": TEXT, "priority": 1}
        async with waiting(client, headers=low) as first:
            task = asyncio.ensure_future(client.post(TRANSLATIONS, json=body, headers=high))
            assert (await first).status_code == 429
            # its equals find no room
            again = await client.post(TRANSLATIONS, json=body, headers=high)
            assert (again.status_code, len(understood), task.done()) == (429, 2, False)
            task.cancel()

    crowded(test, max_waiting=1, keys=Keys(path=str(path)))


@pytest.mark.parametrize("ago", [0.5 * LAG_SECONDS, 3.0])
def test_whose_time_is_over_is_refused_before_it_is_understood(understood, ago):
    """LibreTranslate's bodies have no time of their own."""
    is_late = ago > 2

    async def test(client):
        answer = asyncio.ensure_future(client.post(TRANSLATIONS, json={"text": TEXT, "timeout": 2}))
        while not (understood or answer.done()):
            await asyncio.sleep(0)
        assert answer.done() == is_late
        if is_late:
            found = (await answer).json()["error"]["message"]
            assert answer.result().status_code == 504 and "of 2 seconds has passed" in found
        body = {**BODIES["/translate"], "timeout": 2}
        other = asyncio.ensure_future(client.post("/translate", json=body))
        while client.app.state.calls.service.status().num_waiting < 2 - is_late:
            await asyncio.sleep(0)
        for one in (answer, other):
            one.cancel()

    crowded(test, ago=ago)


def test_a_connection_says_that_a_request_is_whole(understood):
    async def test(http):
        loop, config = asyncio.get_running_loop(), uvicorn.Config(http.app)
        protocol = partial(bounded(Settings()), config, ServerState(), {})
        content = json.dumps(BODIES[TRANSLATIONS]).encode()
        head = (
            f"POST {TRANSLATIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content
        async with waiting(http):
            async with await loop.create_server(protocol, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                async with asyncio.timeout(30):
                    line = await reader.readline()
                writer.close()
        return line

    assert b"429" in server_app.run(test, max_waiting=1)
    assert understood == [TEXT]
