"""Connections: not too many, none that says nothing or reads nothing, and none that says too much."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pybeam.platforms.system import raise_file_limit, seconds_unread
from pybeam.server.clients import Addresses
from pybeam.server.errors import RETRY_SECONDS, APIError, respond
from pybeam.server.settings import Settings
from pybeam.server.sse import Presence

logger = logging.getLogger(__name__)

# the path of live sessions, where alone a connection may become a WebSocket
REALTIME = "/v1/realtime"
# bytes of the head of a request, and of all else around its body
MAX_HEAD = 1 << 16
# files that this process opens beside its connections
OWN_FILES = 128
# requests that begin in a turn of the loop
STARTS = 4
# between two lines of the log that say the same of connections
LOG_SECONDS = 10.0


class Crowd:
    """Counts the connections that are open, of all clients and of each.

    Args:
        most: of all clients.
        most_each: of one client; see `Addresses`, which is made of `proxies`.
    """

    def __init__(self, most: int, most_each: int, proxies: Iterable[str] = ()) -> None:
        self._most, self._most_each = most, most_each
        self._addresses = Addresses(proxies)
        self._num_open = 0
        self._of_client: Counter[str] = Counter()
        self._told_at = -LOG_SECONDS

    def enter(self, address: str) -> APIError | None:
        """Count a connection of this address. Returns why it may not stay; it is then not counted."""
        client, error = self._addresses.client(address), None
        if self._num_open >= self._most:
            error = APIError(503, "the server has too many connections", retry_after=RETRY_SECONDS)
        elif client is not None and self._of_client[client] >= self._most_each:
            error = APIError(
                429,
                f"a client may have {self._most_each} connections; send several requests on each",
                retry_after=RETRY_SECONDS,
            )
        if error is None:
            self._num_open += 1
            self._of_client.update([client] if client else [])
        elif time.monotonic() > self._told_at + LOG_SECONDS:
            self._told_at = time.monotonic()
            logger.warning("a connection of %s is refused: %s", address, error)
        return error

    def leave(self, address: str) -> None:
        """Count no longer a connection that has entered."""
        client = self._addresses.client(address)
        self._num_open -= 1
        if client is not None:
            self._of_client[client] -= 1
            if not self._of_client[client]:
                del self._of_client[client]


class Joined:
    """A transport that sends together what is written in one turn of the loop.

    uvicorn writes the head of an answer and its body one after the other, and uvloop makes a call of the
    system for each, which costs more than what most endpoints do. All else is the transport's.

    Args:
        transport: of a connection.
        loop: in which it is used.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send this at the end of the turn."""
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def close(self) -> None:
        """Close the connection when all that was written has been sent."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        parts, self._parts = self._parts, []
        # nobody reads what comes behind the end
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class Starts:
    """Lets a few requests begin in each turn of the loop, in their order.

    An answer takes some turns of the loop to be written. If all requests that had come began in one turn,
    those that are done, or whose time is over, would wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._num_begun = 0

    def add(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> None:
        """Let a request begin, at once if few have in this turn."""
        if not (self._num_begun or self._waiting):
            loop.call_soon(self._next, loop)
        if self._num_begun < STARTS:
            self._num_begun += 1
            begin()
        else:
            self._waiting.append(begin)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._num_begun = min(STARTS, len(self._waiting))
        if self._num_begun:
            loop.call_soon(self._next, loop)
        for _ in range(self._num_begun):
            self._waiting.popleft()()


class BoundedSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which counts as the connection that it was, and closes if nobody reads it on.

    uvicorn reads no message before the one before it is taken, so that one at most is held.

    Attributes:
        crowd, seconds: those of `Bounded`.
    """

    crowd: ClassVar[Crowd]
    seconds: ClassVar[float] = 30.0
    _reader: asyncio.TimerHandle | None = None

    async def send(self, message: Any) -> None:
        await super().send(message)
        # uvicorn would log an error for each handshake that is refused
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_reader()
        self.crowd.leave(self.client[0] if self.client else "")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._have_reader()

    def _have_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None


class Bounded(HttpToolsProtocol):
    """uvicorn's protocol with bounds on connections, and on what they carry beside bodies; uvicorn has none.

    A client that sends half a head would hold its connection, one that sends a head without
    an end would fill the memory, and one that does not read its answer would keep it there.

    Attributes:
        crowd: counts connections.
        starts: lets requests begin.
        seconds: in which a head must have come, and in which a client must read on.
        socket_class: what a connection becomes that asks for live sessions.
    """

    crowd: ClassVar[Crowd]
    seconds: ClassVar[float] = 30.0
    socket_class: ClassVar[type[BoundedSocket]]
    starts: ClassVar[Starts]
    _timer: asyncio.TimerHandle | None = None
    # runs while more is written than is read
    _reader: asyncio.TimerHandle | None = None
    _has_entered = _is_in_head = _is_in_message = False
    # bytes of the message around its body: of the head, and of chunks as far as they exceed the body
    _size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        joined: Any = Joined(transport, self.loop)
        self._presence = Presence()
        self._descriptor = transport.get_extra_info("socket").fileno()
        super().connection_made(joined)
        error = self.crowd.enter(self._address)
        self._has_entered = error is None
        if error is None:
            self._await_head()
        else:
            self._refuse(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._have_head()
        self._have_reader()
        if self._has_entered:
            self.crowd.leave(self._address)
        super().connection_lost(error)
        self._presence.end()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._have_reader()

    def data_received(self, data: bytes) -> None:
        self._is_in_head = self._is_in_head or not self._is_in_message
        for start in range(0, len(data), MAX_HEAD):
            if self.transport.is_closing():
                return
            part = data[start : start + MAX_HEAD]
            self._size += len(part)
            super().data_received(part)
            if self._size > MAX_HEAD:
                self._refuse(
                    APIError(431, f"the path and the headers must have at most {MAX_HEAD} bytes")
                )
        # most heads come whole, and need no timer
        if self._is_in_head and self._timer is None:
            self._await_head()

    def _should_upgrade_to_ws(self) -> bool:
        is_idle = self.cycle is None or self.cycle.response_complete
        return is_idle and self.url.partition(b"?")[0] == REALTIME.encode()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = self._is_in_message = True
        self.scope["state"]["presence"] = self._presence

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._have_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        # chunks have some bytes around them
        self._size = max(0, self._size - 2 * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_message, self._size = False, 0
        # clients count the time in which nobody read what they had sent
        state: dict[str, Any] = self.scope["state"]
        state["arrived"] = time.monotonic() - seconds_unread(self._descriptor)
        state["is_whole"] = True
        super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.starts.add(self.loop, partial(super()._start_asgi_task, cycle, app))

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self._check)

    def _have_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _have_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _check(self) -> None:
        """Close the connection, unless the request before is still being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()
        else:
            self.transport.close()

    def _refuse(self, error: APIError) -> None:
        # what has begun to be answered cannot be answered otherwise
        if self.cycle is None or self.cycle.response_complete:
            answer = respond("", error, {"Connection": "close"})
            head = [b"%s: %s\r\n" % header for header in answer.raw_headers]
            self.transport.write(
                b"".join([STATUS_LINE[error.status], *head, b"\r\n", bytes(answer.body)])
            )
        self.transport.close()


def bounded(settings: Settings) -> type[Bounded]:
    """Return the protocol of these settings; uvicorn makes its objects itself.

    This process may then open as many files as the system grants.
    """
    granted = max(1, raise_file_limit() - OWN_FILES)
    most = min(granted, settings.max_connections or granted)
    crowd = Crowd(most, settings.max_connections_per_client, settings.forwarded_allow_ips)
    bounds = {"crowd": crowd, "seconds": settings.body_timeout}
    socket_class = type("BoundedSocket", (BoundedSocket,), bounds)
    more = {"socket_class": socket_class, "starts": Starts()}
    return type("Bounded", (Bounded,), bounds | more)
