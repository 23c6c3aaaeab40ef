"""How an answer is read, what it says, and what becomes of its connection."""

import asyncio
import itertools
import socket

import pytest

from pybeam.traffic import Answer, Clients, Window, closed_loop, post
from pybeam.traffic.events import has_choice, is_certain
from support.late_server import HEAD, OK, LateServer, refusal, stream

CONTENT = post("/", {"text": "a"})
PAUSE = 0.05
CERTAIN = stream(b"event: certain", b"data: {}", b"event: result")
CHOICE = stream(b'data: {"choices": [{"text": ""}]}', b'data: {"choices": [{"text": "a"}]}')


def ask(address, number: int = 1, **settings) -> list[Answer]:
    """The answers to requests that follow each other."""

    async def whole():
        async with Clients(address, **settings) as clients:
            return [await clients.ask(CONTENT) for _ in range(number)]

    return asyncio.run(whole())


@pytest.mark.parametrize(
    "parts, num_connections",
    [
        ([OK], 1),
        ([OK[:30], OK[30:]], 1),
        (
            [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\n{}\r\n", b"0\r\nlast: 1\r\n\r\n"],
            1,
        ),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", OK], 1),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], 1),
        ([HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n"], 3),
    ],
)
def test_forms_of_answers(parts, num_connections):
    server = LateServer(*parts)
    for one in ask(server.address, number=3):
        assert one.is_good and not one.problem and one.first is None
    assert server.num_connections == num_connections


def test_an_answer_may_end_with_its_connection():
    server = LateServer(HEAD + b"\r\n", b"{}", closes=True)
    assert [one.status for one in ask(server.address, number=2)] == [200, 200]
    assert server.num_connections == 2


@pytest.mark.parametrize(
    "body, words",
    [
        (b'{"error": {"message": "the queue\\nis full"}}', "the queue is full"),
        (b'{"error": "the queue is full"}', "the queue is full"),
        (b'{"detail": "no"}', "no"),
        (b"<p>no</p>", "<p>no</p>"),
        (b"\xff" * 2000, "\ufffd" * 1000),
        (b"", ""),
    ],
)
def test_refusals_keep_the_servers_words(body, words):
    [one] = ask(LateServer(refusal(429, body)).address)
    assert (one.status, one.problem, one.is_good) == (429, words, False)


@pytest.mark.parametrize(
    "parts, problem",
    [
        ([], "closed before"),
        ([OK[:-1]], "closed before"),
        ([HEAD + b"transfer-encoding: chunked\r\n\r\n", b"5\r\nab"], "closed before"),
        ([b"SSH-2.0\r\n\r\n"], "not HTTP"),
        ([b"HTTP/1.1 OK\r\n\r\n"], "not HTTP"),
        ([HEAD + b"transfer-encoding: chunked\r\n\r\nx\r\n"], "not HTTP"),
        ([HEAD + b"a" * 70000], "not HTTP"),
        ([*stream(b"event: certain", b"event: error")], "ended with an error"),
        ([*stream(b'data: {"error": {}}', b"data: [DONE]")], "ended with an error"),
    ],
)
def test_what_is_no_answer(parts, problem):
    [one] = ask(LateServer(*parts, closes=True).address)
    assert one.status == 0 and problem in one.problem


def test_no_server_and_a_late_one():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    [one] = ask(address)
    assert one.status == 0 and "Connect" in one.problem
    [one] = ask(LateServer(OK, pause=9).address, timeout=PAUSE)
    assert (one.status, one.problem) == (0, "no answer in time")
    assert PAUSE <= one.latency < 5


@pytest.mark.parametrize("parts, is_text", [(CERTAIN, is_certain), (CHOICE, has_choice)])
def test_streams(parts, is_text):
    [one] = ask(LateServer(*parts, pause=PAUSE).address, is_text=is_text)
    assert one.is_good and 2 * PAUSE <= one.first <= one.latency - 0.9 * PAUSE
    # nobody asked when
    [one] = ask(LateServer(*parts).address)
    assert one.is_good and one.first is None


def test_lines_with_text():
    texts = [
        b'{"text": "a"}',
        b'{"delta": {"content": "a"}}',
        b'{"text": "", "delta": {"content": "a"}}',
    ]
    assert all(has_choice(b'data: {"choices": [%s]}\r' % one) for one in texts)
    others = [b"", b"[]", b'{"text": ""}', b'{"delta": {"content": null}}', b'{"delta": {}}', b"1"]
    assert not any(has_choice(b'data: {"choices": [%s]}' % one) for one in others)
    assert not any(
        map(has_choice, (b"", b"data: [DONE]", b"data: 1", b"event: a", b'{"choices": 1}'))
    )


def test_connections_are_used_again():
    server, answers = LateServer(OK), []

    async def whole():
        async with Clients(server.address) as clients:
            note = lambda moment, answer: answers.append((moment, answer))  # noqa: E731
            await closed_loop(clients, itertools.repeat(CONTENT), 2, Window(seconds=0.1), note)

    asyncio.run(whole())
    assert len(answers) > 2 and {one.status for _, one in answers} == {200}
    assert all(0 <= moment <= 0.1 for moment, _ in answers)
    assert server.num_connections == 2


def test_the_bytes_of_a_request():
    content = post("/a", {"text": "é"}, "example.org:80", "key")
    head, _, body = content.partition(b"\r\n\r\n")
    assert body == b'{"text": "\\u00e9"}'
    assert head.split(b"\r\n") == [
        b"POST /a HTTP/1.1",
        b"Host: example.org:80",
        b"Content-Type: application/json",
        b"Authorization: Bearer key",
        b"Content-Length: 18",
    ]
    assert b"Authorization" not in CONTENT
