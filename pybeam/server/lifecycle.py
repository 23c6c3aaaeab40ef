"""The life of a server process: it stops without losing a request that it has taken."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from pybeam.server.connections import impatient, raise_file_limit
from pybeam.server.errors import RETRY_SECONDS, APIError, respond
from pybeam.server.settings import Settings
from pybeam.serving import Service

logger = logging.getLogger(__name__)

# paths that are answered while the server stops
OPEN_PATHS = {"/health", "/ready", "/metrics", "/version"}
# in which answers are written after the last request has been cancelled
LAST_SECONDS = 2.0
POLL_SECONDS = 0.02


class Gate:
    """Counts requests that are being answered; once closed, it takes no new ones."""

    def __init__(self) -> None:
        self.is_open = True
        self.num_active = 0

    async def wait_until_empty(self, seconds: float) -> bool:
        """Wait until every request has been answered; returns False if that takes longer."""
        end = time.monotonic() + seconds
        while self.num_active:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True


class Gated:
    """Middleware: sends requests through a gate."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if not self._gate.is_open:
            error = APIError(503, "the server is stopping", retry_after=RETRY_SECONDS)
            response = respond(scope["path"], error, {"Connection": "close"})
            await response(scope, receive, send)
            return
        self._gate.num_active += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._gate.num_active -= 1


class Server(uvicorn.Server):
    """A server that a signal stops in steps: not ready, no new requests, finish, cancel the rest, exit.

    A second signal skips to the cancelling.

    Args:
        config: uvicorn's.
        gate: of the app.
        stop: closes the service, upon which the rest of the requests fails; called in another thread.
        settings: say how long requests may come and finish.
    """

    def __init__(
        self, config: uvicorn.Config, gate: Gate, stop: Callable[[], None], settings: Settings
    ) -> None:
        super().__init__(config)
        self._gate, self._stop, self._settings = gate, stop, settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_hurried = asyncio.Event()

    async def startup(self, sockets: list | None = None) -> None:
        """Start to listen, and say where."""
        self._loop = asyncio.get_running_loop()
        patience = self._settings.body_timeout
        self.config.http_protocol_class = impatient(self.config.http_protocol_class, patience)
        await super().startup(sockets)
        for server in getattr(self, "servers", []):
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                logger.info("listening on http://%s:%d", host, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; uvicorn calls this for SIGINT and SIGTERM."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_to_stop, signal.Signals(sig).name)

    def _begin_to_stop(self, name: str) -> None:
        logger.info("%s: the server stops", name)
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop_in_steps())
        else:
            self._is_hurried.set()

    async def _stop_in_steps(self) -> None:
        self._gate.is_open = False
        finished = asyncio.ensure_future(
            self._gate.wait_until_empty(self._settings.shutdown_timeout)
        )
        hurried = asyncio.ensure_future(self._is_hurried.wait())
        await asyncio.wait({finished, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        hurried.cancel()
        if self._gate.num_active:
            logger.warning("cancelling %d requests", self._gate.num_active)
        await asyncio.to_thread(self._stop)
        await self._gate.wait_until_empty(LAST_SECONDS)
        self.should_exit = True


def serve(app: ASGIApp, service: Service, gate: Gate, settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; returns when everything has been answered or cancelled.

    Raises:
        SystemExit: it cannot listen there.
    """
    config = uvicorn.Config(
        app,
        settings.host,
        settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(LAST_SECONDS),
    )
    server = Server(config, gate, lambda: service.close(timeout=0), settings)
    raise_file_limit()
    server.run()
