"""Connections: as many as the system allows, none that says nothing, and none that says too much."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pybeam.server.settings import Settings

# bytes of the head of a request, and of all else around its body
MAX_HEAD = 1 << 16
TOO_LARGE = f"the path and the headers must have at most {MAX_HEAD} bytes"


class Bounded(HttpToolsProtocol):
    """uvicorn's protocol with bounds on the time and the size of a request's head. uvicorn has none.

    A client that sends half a head would hold its connection, one that never ends it would fill the memory.

    Attributes:
        head_seconds: in which a head must have come.
    """

    head_seconds: ClassVar[float] = 30.0
    _timer: asyncio.TimerHandle | None = None
    _is_in_head = _is_in_message = False
    # bytes of the message around its body: of the head, and of chunks as far as they exceed the body
    _size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, error: Exception | None) -> None:
        self._have_head()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self._is_in_head = self._is_in_head or not self._is_in_message
        for start in range(0, len(data), MAX_HEAD):
            if self.transport.is_closing():
                return
            part = data[start : start + MAX_HEAD]
            self._size += len(part)
            super().data_received(part)
            if self._size > MAX_HEAD:
                self._refuse()
        # most heads come whole, and need no timer
        if self._is_in_head and self._timer is None:
            self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = self._is_in_message = True

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._have_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        # chunks have some bytes around them
        self._size -= 2 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_message, self._size = False, 0
        super().on_message_complete()

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(self.head_seconds, self._check)

    def _have_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Close the connection, unless the request before is still being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()
        else:
            self.transport.close()

    def _refuse(self) -> None:
        # what has begun to be answered cannot be answered otherwise
        if self.cycle is None or self.cycle.response_complete:
            error = {"message": TOO_LARGE, "type": "invalid_request_error"}
            body = json.dumps({"error": error | {"param": None, "code": None}}).encode()
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                % (len(body), body)
            )
        self.transport.close()


def bounded(settings: Settings) -> type[Bounded]:
    """Return the protocol with the time of these settings; uvicorn makes its objects itself."""
    return type("Bounded", (Bounded,), {"head_seconds": settings.body_timeout})


def raise_file_limit() -> None:
    """Let this process open as many connections as it may; the usual limit is 1024."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS may name a limit that it does not grant
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
