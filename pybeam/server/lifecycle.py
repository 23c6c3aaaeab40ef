"""The life of a server process: it listens at once, and stops without losing a request that it has taken."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from pybeam.platforms.system import HANGUP
from pybeam.server.connections import bounded
from pybeam.server.errors import RETRY_SECONDS, APIError, respond
from pybeam.server.gates import Gate
from pybeam.server.settings import Settings

logger = logging.getLogger(__name__)

# in which answers are written after the last request has been cancelled
LAST_SECONDS = 2.0


class Front:
    """The application from the first connection on: it says that the server is starting until it has another.

    Attributes:
        app: which answers when all is warm; None: not yet.
    """

    def __init__(self) -> None:
        self.app: FastAPI | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        else:
            await _starting(scope["path"])(scope, receive, send)


def _starting(path: str) -> JSONResponse:
    if path == "/health":
        return JSONResponse({"status": "ok"})
    if path == "/ready":
        return JSONResponse({"status": "starting"}, 503, {"Retry-After": str(RETRY_SECONDS)})
    error = APIError(503, "the server is starting", retry_after=RETRY_SECONDS)
    return respond(path, error, {"Connection": "close"})


class Server(uvicorn.Server):
    """A server that listens at once and answers when it is warm.

    A signal stops it in steps: not ready, no new requests, finish, cancel the rest, exit. A second signal
    skips to the cancelling.

    Args:
        start: makes the application, whose service has started; called in another thread.
        settings: say where it listens, and how long requests may come and finish.
        reload: are called at SIGHUP. Without any, that signal ends a process that has a terminal.

    Attributes:
        error: why it could not start.
    """

    def __init__(
        self,
        start: Callable[[], FastAPI],
        settings: Settings,
        reload: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._front, protocol = Front(), bounded(settings)
        config = uvicorn.Config(
            self._front,
            settings.host,
            settings.port,
            http=protocol,
            ws=protocol.socket_class,
            ws_max_size=settings.max_body,
            # a message that is small would unpack into a large one
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            forwarded_allow_ips=list(settings.forwarded_allow_ips),
            timeout_keep_alive=math.ceil(settings.keep_alive),
            timeout_graceful_shutdown=int(LAST_SECONDS),
        )
        super().__init__(config)
        self._start, self._settings, self._reload = start, settings, reload
        self.error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_hurried = asyncio.Event()

    async def startup(self, sockets: list | None = None) -> None:
        """Start to listen, say where, and begin to make the application."""
        self._loop = asyncio.get_running_loop()
        # a terminal that is closed means that its programs end
        if HANGUP is not None and (self._reload or not os.isatty(0)):
            self._loop.add_signal_handler(HANGUP, self._read_again)
        try:
            await super().startup(sockets)
        except SystemExit:
            # uvicorn has logged why
            where = self._settings.host, self._settings.port
            logger.error("cannot listen at %s, port %d; give another --host or --port", *where)
            raise
        for server in getattr(self, "servers", []):
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                logger.info("listening on http://%s:%d", host, port)
        # nobody waits for it if the server is told to stop meanwhile
        threading.Thread(target=self._make, name="pybeam start", daemon=True).start()

    @property
    def is_loading(self) -> bool:
        """Whether a thread loads models: those of the beginning, or another."""
        app = self._front.app
        return self.error is None if app is None else app.state.calls.manager.is_loading

    def _make(self) -> None:
        assert self._loop is not None
        try:
            app = self._start()
        except BaseException as error:
            self.error, self.should_exit = error, True
            return
        # all that is here stays: to look at it again and again would stop every thread for a while each time
        gc.collect()
        gc.freeze()
        # the loop is closed if the server has been told to stop
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._open, app)

    def _open(self, app: FastAPI) -> None:
        self._front.app = app
        logger.info("ready")

    def _read_again(self) -> None:
        num_failed = 0
        for read in self._reload:
            try:
                read()
            except (OSError, ValueError) as error:
                num_failed += 1
                logger.error("SIGHUP: what was read before stays: %s", error)
        if not num_failed:
            logger.info("SIGHUP: files are read again")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; uvicorn calls this for SIGINT and SIGTERM."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_to_stop, signal.Signals(sig).name)

    def _begin_to_stop(self, name: str) -> None:
        logger.info("%s: the server stops", name)
        if self._front.app is None:
            self.should_exit = True
        elif self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop_in_steps(self._front.app))
        else:
            self._is_hurried.set()

    async def _stop_in_steps(self, app: FastAPI) -> None:
        gate: Gate = app.state.gate
        gate.closing.set()
        finished = asyncio.ensure_future(gate.wait_until_empty(self._settings.shutdown_timeout))
        hurried = asyncio.ensure_future(self._is_hurried.wait())
        await asyncio.wait({finished, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        hurried.cancel()
        if gate.num_active:
            logger.warning("cancelling %d requests", gate.num_active)
        # upon which the rest of the requests fails
        await asyncio.to_thread(app.state.calls.service.close, timeout=0)
        await gate.wait_until_empty(LAST_SECONDS)
        self.should_exit = True


def serve(
    start: Callable[[], FastAPI], settings: Settings, reload: Sequence[Callable[[], None]] = ()
) -> None:
    """Serve until SIGTERM or SIGINT; returns when everything has been answered or cancelled.

    Args:
        start: makes the application, whose service has started. It is called in another thread when the
            server listens, which meanwhile says that it is starting.
        settings: of the server.
        reload: read files again; they are called at SIGHUP.

    Raises:
        SystemExit: it cannot listen there.
        Exception: what `start` raises.
    """
    server = Server(start, settings, reload)
    server.run()
    if server.is_loading:
        # the thread that loads models cannot be stopped, and would crash in a process that takes itself apart
        logging.shutdown()
        os._exit(0)
    if server.error is not None:
        raise server.error
