"""The load driver: when requests are sent, what counts as latency, and what rows make of it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

for module in ("tabulate", "sacrebleu", "sentencepiece"):
    pytest.importorskip(module)

from benchmarks import load, service  # noqa: E402
from benchmarks.load import Answer, closed_loop, open_loop, post  # noqa: E402

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
STREAM = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    b"11\r\nevent: certain\n\n\n\r\n",
    b"5\r\nlast\n\r\n0\r\n\r\n",
)
PAUSE = 0.1


class Server:
    """Answers one request after another in this way, on every connection."""

    def __init__(self, *parts: bytes, pause: float = 0.0, is_serial: bool = False) -> None:
        self._parts, self._pause = parts, pause
        self._turn = threading.Lock() if is_serial else contextlib.nullcontext()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.num_connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.num_connections += 1
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while connection.recv(65536):
                if not self._parts:
                    return
                with self._turn:
                    for part in self._parts:
                        time.sleep(self._pause)
                        connection.sendall(part)


def test_latency_counts_from_when_a_request_is_due():
    server = Server(OK, pause=PAUSE, is_serial=True)
    answers = open_loop(server.address, [post("/", {})] * 4, [0.0] * 4)
    assert [one.status for one in answers] == [200] * 4
    # each waits for those before it
    for place, one in enumerate(sorted(answers, key=lambda one: one.latency), start=1):
        assert one.latency >= place * PAUSE


def test_connections_are_used_again():
    server = Server(OK)
    contents = [post("/", {})] * 3
    answers, seconds = closed_loop(server.address, contents, 2, seconds=0.1)
    assert len(answers) > 2 and {one.status for one in answers} == {200}
    assert seconds >= 0.1
    assert server.num_connections == 2


def test_streams():
    server = Server(*STREAM, pause=PAUSE)
    [one] = open_loop(server.address, [post("/", {})], [0.0])
    assert one.status == 200
    assert 2 * PAUSE <= one.first <= one.latency - 0.9 * PAUSE


def test_other_ends(monkeypatch):
    monkeypatch.setattr(load, "PATIENCE_SECONDS", PAUSE)
    refused = Server(OK.replace(b"200 OK", b"429 Too Many Requests"))
    for server, status in ((refused, 429), (Server(), 0), (Server(OK, pause=9), 0)):
        [one] = open_loop(server.address, [post("/", {})], [0.0])
        assert one.status == status
    assert one.latency >= PAUSE
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    [one] = open_loop(address, [post("/", {})], [0.0])
    assert one.status == 0


def test_rows():
    answers = [Answer(0.1, 200, 0.05), Answer(0.4, 200, 0.1), Answer(0.9, 200), Answer(0.2, 429)]
    row = service._facts(answers, seconds=2.0)
    assert row["requests"] == 4 and row["answered/s"] == 1.5
    assert (row["good/s, 200 ms"], row["good/s, 500 ms"]) == (0.5, 1.0)
    assert row["p50_ms"] == pytest.approx(400) and row["latest_ms"] == pytest.approx(900)
    assert row["first, share of the whole"] == pytest.approx((0.5 + 0.25) / 2)
    assert row["status 429"] == 1 and "status 0" not in row


def test_load_that_a_server_holds():
    rows = [{"req/s": rate, "p99_ms": p99} for rate, p99 in ((10, 50), (20, 100), (40, 10000))]
    assert service._held(rows, 10) == 0
    assert service._held(rows, 1000) == pytest.approx(30)
    assert service._held(rows[:2], 1000) == 20
    # who refuses does not hold
    assert service._held([rows[0], {**rows[1], "status 429": 3}], 1000) == 10
