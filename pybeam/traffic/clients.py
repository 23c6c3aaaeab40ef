"""Connections to one server, which note when each request was answered, and how.

They read no more of HTTP/1.1 than they need: on the server's own machine, the time that clients compute is
missing from the server.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from pybeam.traffic.events import EventLines

# of a head in small letters
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked")
CLOSES = re.compile(rb"\r\nconnection: *close")
PIECE = 1 << 16
# of a body that says why a request was refused
MAX_SHOWN = 1000
Address = tuple[str, int]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a request.

    Attributes:
        latency: seconds from when it was due to the end of the answer, or until nobody waited any more.
        status: of HTTP; 0: there was no answer, or a stream broke off.
        first: seconds until the first text of a stream; None: there was none.
        lag: seconds from when it was due until the client got round to it.
        problem: why there was no answer, or the server's words with a status of 400 or more.
    """

    latency: float
    status: int
    first: float | None = None
    lag: float = 0.0
    problem: str = ""

    @property
    def is_good(self) -> bool:
        """Whether the server did what it was asked."""
        return 200 <= self.status < 300


class Clients:
    """Connections to one server, kept open and used again.

    Args:
        address: host and port. The address at which the host first answers is used from then on.
        tls: how the server proves who it is; None: the connections are not encrypted.
        timeout: seconds from when a request is due, after which its connection is closed.
        is_text: whether a line of a stream of events has text; None: there are no streams.
    """

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None = None,
        timeout: float = math.inf,
        is_text: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._address, self._host = address, address[0]
        self._tls, self._timeout, self._is_text = tls, timeout, is_text
        self._idle: list[Connection] = []

    async def ask(self, content: bytes, due: float | None = None) -> Answer:
        """Send a request, whose latency counts from `due` on `time.perf_counter`; None: from now."""
        begun = time.perf_counter()
        due = begun if due is None else due
        left = None if math.isinf(self._timeout) else due + self._timeout - begun
        status, first, problem = 0, None, ""
        try:
            async with asyncio.timeout(left):
                status, events = await self._exchange(content)
            first, problem = events.first, events.problem
            if events.is_broken:
                status = 0
        except TimeoutError:
            problem = "no answer in time"
        except EOFError:
            problem = "the connection was closed before the answer had ended"
        except OSError as error:
            problem = error.strerror or str(error)
        except (ValueError, asyncio.LimitOverrunError):
            problem = "the answer is not HTTP/1.1"
        latency = time.perf_counter() - due
        return Answer(latency, status, None if first is None else first - due, begun - due, problem)

    async def _exchange(self, content: bytes) -> tuple[int, EventLines]:
        """Send a request and read its answer. The connection stays only if all went well."""
        reader, writer = await self._connection()
        stays = False
        try:
            writer.write(content)
            status, events = 0, EventLines(self._is_text)
            # 100 and 103 announce an answer
            while status < 200:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                status = _status_of(head)
            refusal = bytearray()
            await _read_body(reader, head, status, refusal.extend if status >= 400 else events.add)
            if status >= 400:
                events.problem = _words_of(refusal[:MAX_SHOWN])
            stays = not CLOSES.search(head) and (_has_end(head) or status in (204, 304))
        finally:
            if stays:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()
        return status, events

    async def _connection(self) -> Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            # the server may have closed it meanwhile
            if not reader.at_eof():
                return reader, writer
            writer.transport.abort()
        name = self._host if self._tls else None
        reader, writer = await asyncio.open_connection(
            *self._address, ssl=self._tls, server_hostname=name
        )
        # so that no other connection asks for the host's addresses again
        self._address = writer.get_extra_info("peername")[:2]
        return reader, writer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()
        # transports are closed by the loop
        await asyncio.sleep(0)


def _status_of(head: bytes) -> int:
    if not head.startswith(b"http/1."):
        raise ValueError
    return int(head[9:12])


def _has_end(head: bytes) -> bool:
    """Whether a body ends before its connection does."""
    return bool(LENGTH.search(head) or CHUNKED.search(head))


async def _read_body(
    reader: asyncio.StreamReader, head: bytes, status: int, take: Callable[[bytes], None]
) -> None:
    """Give the pieces of a body away as they come. Raises EOFError if the connection ends before it."""
    if status in (204, 304):
        return
    if CHUNKED.search(head):
        while size := int(await reader.readuntil(b"\r\n"), 16):
            take((await reader.readexactly(size + 2))[:-2])
        # there may be lines behind the last chunk
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    elif length := LENGTH.search(head):
        take(await reader.readexactly(int(length[1])))
    else:
        while piece := await reader.read(PIECE):
            take(piece)


def _words_of(refusal: bytes | bytearray) -> str:
    """Return what a server says in the body of an error, in whichever of the usual forms."""
    text = refusal.decode("utf-8", errors="replace")
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    for name in ("error", "detail", "message"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return " ".join(str(found).split())


def post(path: str, body: dict[str, Any], host: str = "localhost", key: str | None = None) -> bytes:
    """Return the bytes of a request.

    Args:
        path: behind the host, as a URL has it.
        body: becomes JSON.
        host: with the port, as the header has it.
        key: of the API; None: the request has none.
    """
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content
