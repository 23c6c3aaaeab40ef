"""Heads of requests are bounded, connections stay open, and a client that goes is one line in the log."""

from __future__ import annotations

import contextlib
import socket
import time

import httpx
import pytest

from pybeam.server.connections import MAX_HEAD
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


def test_small_chunks_are_no_head(server):
    """A body of many chunks has more bytes around it than a head may have."""
    body = b"".join(b"%x\r\n%s\r\n" % (10, b"q=aaaaaaaa") for _ in range(1900))
    head = CHUNKED + b"Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n\r\n"
    assert b" 400 " in answer(server, head, body, b"0\r\n\r\n")


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
