"""Gates count the requests that are being answered: those of the server, and those of each model."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Receive, Scope, Send

from pybeam.server.errors import RETRY_SECONDS, APIError, refuse

# paths that are answered while the server stops
OPEN_PATHS = {"/health", "/ready", "/metrics", "/version"}
POLL_SECONDS = 0.02


class Gate:
    """Counts requests that are being answered; once closed, it takes no new ones.

    Attributes:
        num_active: so many.
        last_used: when one last came or had been answered; on the monotonic clock.
        closing: is set when it closes, upon which live sessions that have entered end.
    """

    def __init__(self) -> None:
        self.num_active, self.last_used = 0, time.monotonic()
        self.closing = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return not self.closing.is_set()

    def enter(self, scope: Scope) -> None:
        """Count a request until it has been answered, which `Gated` notices."""
        self.num_active, self.last_used = self.num_active + 1, time.monotonic()
        scope.setdefault("state", {}).setdefault("gates", []).append(self)

    def leave(self) -> None:
        """Count a request no more."""
        self.num_active, self.last_used = self.num_active - 1, time.monotonic()

    async def wait_until_empty(self, seconds: float) -> bool:
        """Wait until every request has been answered; returns False if that takes longer."""
        end = time.monotonic() + seconds
        while self.num_active:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


class Gated:
    """Middleware: sends requests through a gate, and lets them leave all that they have entered."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if not self._gate.is_open:
            error = APIError(503, "the server is stopping", retry_after=RETRY_SECONDS)
            await refuse(scope, receive, send, error)
            return
        self._gate.enter(scope)
        try:
            await self._app(scope, receive, send)
        finally:
            for gate in scope["state"].pop("gates"):
                gate.leave()
