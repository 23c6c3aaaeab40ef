"""Connections: as many as the system allows, and none that says nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


def impatient(protocol: Any, seconds: float) -> type[asyncio.Protocol]:
    """Return a subclass of uvicorn's protocol that closes connections without a request.

    uvicorn waits for ever for the head of a request, so that a client that sends half of one would hold its
    connection.

    Args:
        protocol: uvicorn's class.
        seconds: in which the head of the next request must have come.
    """

    class Impatient(protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._last: Any = None
            self._await_request(transport)

        def connection_lost(self, error: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(error)

        def _await_request(self, transport: asyncio.Transport) -> None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._check, transport)

        def _check(self, transport: asyncio.Transport) -> None:
            # uvicorn's object for the latest request
            latest = self.cycle
            if latest is None or (latest is self._last and latest.response_complete):
                transport.close()
            else:
                self._last = latest
                self._await_request(transport)

    return Impatient


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
