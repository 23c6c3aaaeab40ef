"""A server that answers as it is told: late, in pieces, or not at all."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time

HEAD = b"HTTP/1.1 200 OK\r\n"
OK = HEAD + b"content-length: 2\r\n\r\n{}"


def refusal(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def stream(*lines: bytes) -> tuple[bytes, ...]:
    """The parts of an answer whose chunks are these lines."""
    chunks = [b"%x\r\n%s\n\r\n" % (len(line) + 1, line) for line in lines]
    return (HEAD + b"transfer-encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n")


class LateServer:
    """Answers each request with these parts, on every connection.

    Args:
        parts: none: it closes the connection.
        pause: seconds before each.
        is_serial: whether one request waits for the other.
        closes: whether it closes a connection behind an answer.
        tls: how it proves who it is; None: connections are not encrypted.
    """

    def __init__(
        self,
        *parts: bytes,
        pause: float = 0.0,
        is_serial: bool = False,
        closes: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._parts, self._pause, self._closes, self._tls = parts, pause, closes, tls
        self._turn = threading.Lock() if is_serial else contextlib.nullcontext()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self.num_connections = 0
        self.received: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.address[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.num_connections += 1
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            if self._tls is not None:
                connection = stack.enter_context(
                    self._tls.wrap_socket(connection, server_side=True)
                )
            while content := connection.recv(65536):
                self.received.append(content)
                if not self._parts:
                    return
                with self._turn:
                    for part in self._parts:
                        time.sleep(self._pause)
                        connection.sendall(part)
                if self._closes:
                    return
