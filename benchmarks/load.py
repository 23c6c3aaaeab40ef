"""Sends requests to an HTTP server as many clients would, and notes when each was answered.

In an open loop requests come when they are due, whatever the server does. Latency runs from then, not from
when the request was sent, so a server that falls behind pays for all that it holds up.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
# an answer that has not come so long after the last request was due is not waited for
PATIENCE_SECONDS = 5.0
Address = tuple[str, int]


@dataclass(frozen=True)
class Answer:
    """The outcome of a request.

    Attributes:
        latency: seconds from when it was due to the end of the answer, or until nobody waited any more.
        status: of HTTP; 0: there was no answer.
        first: seconds until the first text of a stream that is certain; None: there was none.
    """

    latency: float
    status: int
    first: float | None = None


class Clients:
    """Connections to one server, kept open and used again.

    They read no more of HTTP than they need: on the server's own machine, what clients compute is missing
    from the server.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, content: bytes, due: float | None = None) -> Answer:
        """Send a request, whose latency counts from `due` on `time.perf_counter`; None: from now."""
        due = time.perf_counter() if due is None else due
        writer = None
        try:
            reader, writer = await self._connection()
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            first = None
            if length:
                await reader.readexactly(int(length[1]))
            else:
                first = await _first_certain(reader)
        except (OSError, EOFError, asyncio.CancelledError):
            if writer is not None:
                writer.close()
            return Answer(time.perf_counter() - due, 0)
        latency = time.perf_counter() - due
        if CLOSES.search(head):
            writer.close()
        else:
            self._idle.append((reader, writer))
        return Answer(latency, int(head[9:12]), None if first is None else first - due)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            # the server may have closed it meanwhile
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(*self._address)

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        # transports are closed by the loop
        await asyncio.sleep(0)


async def _first_certain(reader: asyncio.StreamReader) -> float | None:
    """Read a chunked stream of events to its end. Returns when the first certain text came."""
    first = None
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunk = await reader.readexactly(size + 2)
        if first is None and b"event: certain" in chunk:
            first = time.perf_counter()
    await reader.readexactly(2)
    return first


def post(path: str, body: dict) -> bytes:
    """The bytes of a request."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def open_loop(address: Address, contents: Sequence[bytes], due: Iterable[float]) -> list[Answer]:
    """Send each request when it is due, in seconds from now."""

    async def send(clients: Clients) -> list[Answer]:
        start, tasks = time.perf_counter(), []
        for content, moment in zip(contents, due, strict=True):
            await asyncio.sleep(max(0.0, start + moment - time.perf_counter()))
            tasks.append(asyncio.ensure_future(clients.ask(content, start + moment)))
        _, late = await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
        for task in late:
            task.cancel()
        return await asyncio.gather(*tasks)

    return _run(address, send)


def closed_loop(
    address: Address, contents: Sequence[bytes], num_clients: int, seconds: float
) -> tuple[list[Answer], float]:
    """Let each client send its next request when it has the last answer, for so many seconds.

    Returns the answers, and the seconds until the last one.
    """
    following = itertools.cycle(contents)

    async def send(clients: Clients) -> tuple[list[Answer], float]:
        start, answers = time.perf_counter(), []

        async def one() -> None:
            while time.perf_counter() - start < seconds:
                answers.append(await clients.ask(next(following)))

        tasks = [asyncio.ensure_future(one()) for _ in range(num_clients)]
        _, late = await asyncio.wait(tasks, timeout=seconds + PATIENCE_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks)
        return answers, time.perf_counter() - start

    return _run(address, send)


def _run(address: Address, send: Callable) -> Any:
    async def whole():
        clients = Clients(address)
        try:
            return await send(clients)
        finally:
            await clients.close()

    return asyncio.run(whole())
