"""Connections and heads of requests are bounded, and a client that goes is one line in the log."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any

import httpx
import pytest

from pybeam.server.connections import MAX_HEAD, Crowd, Joined
from support.server_process import memory, needs_proc, wait_until

MEGA = 1 << 20
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


def all_of(connection: socket.socket) -> bytes:
    """Return what comes until the server closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            found += part
    return found


def answer(server, *parts: bytes) -> bytes:
    """Return what the server says to these bytes until it closes the connection."""
    with socket.create_connection(server.address, timeout=20) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        return all_of(connection)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health?" + b"a" * MAX_HEAD,
        HEALTH + b"a: " + b"a" * MAX_HEAD,
        HEALTH + b"a: b\r\n" * (MAX_HEAD // 6),
        HEALTH + b"\r\n" + HEALTH + b"a: " + b"a" * 2 * MAX_HEAD,
    ],
    ids=["path", "one header", "headers", "the second request"],
)
def test_a_head_that_is_too_large(server, head):
    assert b" 431 " in answer(server, head)


def test_a_head_that_is_just_small_enough(server):
    head = HEALTH + b"Connection: close\r\na: "
    rest = b"a" * (MAX_HEAD - len(head) - 4)
    assert b" 200 OK" in answer(server, head, rest, b"\r\n\r\n")


@needs_proc
def test_heads_and_trailers_of_many_megabytes_are_not_kept(server, http):
    http.get("/health")
    before = memory(server)
    trailers = CHUNKED + b"\r\n1\r\na\r\n0\r\na: "
    extension = CHUNKED + b"\r\n1;"
    for begin in (HEALTH + b"a: ", trailers, extension):
        for _ in range(4):
            answer(server, begin, *[b"a" * MEGA] * 40)
    assert memory(server) < before + 20 * MEGA
    assert http.get("/health").status_code == 200


def test_trailers_are_bounded_behind_a_large_body_too(server):
    """That of a request whose answer does not wait for it."""
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    body = b"\r\n%x\r\n%s\r\n0\r\n" % (MEGA, b"a" * MEGA)
    trailers = b"a: b\r\n" * (3 * MAX_HEAD // 6)
    found = answer(server, head + b"Connection: close\r\n" + body, trailers + b"\r\n")
    assert b" 404 " in found and b" 431 " not in found
    found = answer(server, head + body, trailers + b"\r\n")
    assert b" 404 " in found and b" 431 " in found


def test_small_chunks_are_no_head(server):
    """A body of many chunks has more bytes around it than a head may have."""
    body = b"".join(b"%x\r\n%s\r\n" % (10, b"q=aaaaaaaa") for _ in range(1900))
    head = CHUNKED + b"Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\n"
    assert b" 400 " in answer(server, head, body, b"0\r\n\r\n")


@pytest.mark.slow
def test_a_connection_stays_open_for_the_next_request(server):
    """For longer than a head may take."""
    with socket.create_connection(server.address, timeout=20) as connection:
        for _ in range(2):
            connection.sendall(HEALTH + b"\r\n")
            found = b""
            while not found.endswith(b"}"):
                part = connection.recv(1000)
                assert part, "it has been closed"
                found += part
            assert b" 200 OK" in found
            time.sleep(1.2)


@pytest.mark.parametrize(
    "path", ["/v1/translations", "/translate", "/v1/audio/transcriptions", "/v1/completions"]
)
def test_a_client_that_goes_in_the_middle_of_a_body(server, http: httpx.Client, path):
    name = path.replace("/", ".")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: gone{name}\r\n"
    kind = "multipart/form-data; boundary=a" if "audio" in path else "application/json"
    rest = f"Content-Type: {kind}\r\nContent-Length: 99\r\n\r\n--a\r\n"
    with socket.create_connection(server.address) as connection:
        connection.sendall((head + rest).encode())
        # it must have begun to read
        http.get("/health")

    def records() -> list[dict]:
        return [one for one in server.records() if one.get("request_id") == f"gone{name}"]

    wait_until(records)
    [record] = records()
    assert (record["status"], record["level"]) == (499, "info")
    http.get("/health")
    assert not [one for one in server.records() if "exception" in one]


def test_connections_are_counted_for_each_client_and_in_all():
    crowd = Crowd(6, 2, ["10.0.0.0/8"])
    many = ["1.2.3.4", "1.2.3.4", "::1", "2001:db8::1", "2001:db8::ffff", "10.1.1.1"]
    assert [crowd.enter(one) for one in many[:2]] == [None, None]
    refused = crowd.enter("1.2.3.4")
    assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
    assert [crowd.enter(one) for one in many[2:5]] == [None] * 3
    # one machine may have all addresses of such a network
    assert crowd.enter("2001:db8::2").status == 429
    assert crowd.enter("10.1.1.1") is None
    assert crowd.enter("9.9.9.9").status == crowd.enter("10.1.1.2").status == 503
    for one in many:
        crowd.leave(one)
    assert crowd.enter("1.2.3.4") is None
    proxied = Crowd(99, 1, ["10.0.0.0/8"])
    assert {proxied.enter("10.1.1.1") for _ in range(9)} == {None}


@needs_proc
def test_a_client_has_no_more_connections_than_it_may(server, http):
    def connect() -> socket.socket:
        # not the address of a proxy
        return socket.create_connection(server.address, 20, source_address=("127.0.0.2", 0))

    def is_admitted(connection: socket.socket) -> bool:
        with contextlib.suppress(ConnectionError):
            connection.sendall(HEALTH + b"\r\n")
            return b" 200 OK" in connection.recv(1000)
        return False

    with contextlib.ExitStack() as stack:
        for _ in range(3):
            assert is_admitted(stack.enter_context(connect()))
        with connect() as beyond:
            found = all_of(beyond)
        assert (
            found.startswith(b"HTTP/1.1 429 Too Many Requests\r\n") and b"retry-after: 5" in found
        )
        assert http.get("/health").status_code == 200
    wait_until(lambda: any("is refused" in line for line in server.lines))

    def is_admitted_again() -> bool:
        with connect() as another:
            return is_admitted(another)

    wait_until(is_admitted_again)


@needs_proc
@pytest.mark.parametrize(
    ("path", "answer"), [(b"/health", b" 200 OK"), (b"/v1/realtime", b" 400 Bad Request")]
)
def test_what_would_become_a_websocket_is_counted_like_others(server, path, answer):
    """More of them than a client may have connections. One path takes them; no model here hears windows."""
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    request = HEALTH.replace(b"/health", path) + upgrade
    request += b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"

    def is_answered() -> bool:
        own = ("127.0.0.3", 0)
        with socket.create_connection(server.address, 20, source_address=own) as connection:
            connection.sendall(request)
            return answer in connection.recv(1000)

    for _ in range(5):
        wait_until(is_answered)


@pytest.mark.slow
def test_an_answer_that_is_not_read_is_not_kept(server):
    """Ten answers of a megabyte do not fit between a server and its client."""
    path, num = b"/static-offline-docs/swagger-ui-bundle.js", 10
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(server.address)
        connection.sendall(num * (b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        # the time that a client has for it
        time.sleep(1.5)
        assert len(all_of(connection)) < num * MEGA


class Sent:
    """A transport that remembers what it was told to send, and whether it was closed."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        assert not self.is_closing()
        self.told.append(data)

    def close(self) -> None:
        self.told.append("close")

    abort = close

    def is_closing(self) -> bool:
        return "close" in self.told


def test_what_is_written_in_one_turn_is_sent_together():
    async def test():
        sent: Any = Sent()
        joined = Joined(sent, asyncio.get_running_loop())
        for parts in ((b"head", b"body"), (b"more",)):
            for part in parts:
                joined.write(part)
            await asyncio.sleep(0)
        assert sent.told == [b"headbody", b"more"]
        joined.write(b"last")
        joined.close()
        await asyncio.sleep(0)
        assert sent.told[2:] == [b"last", "close"] and joined.is_closing()

    asyncio.run(test())


def test_nothing_is_sent_to_a_client_that_has_gone():
    async def test():
        sent: Any = Sent()
        joined = Joined(sent, asyncio.get_running_loop())
        joined.write(b"a")
        joined.abort()
        await asyncio.sleep(0)
        assert sent.told == ["close"]

    asyncio.run(test())
