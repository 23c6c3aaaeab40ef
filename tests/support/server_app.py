"""The server's application in this process, without sockets or behind one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx

import pybeam
from pybeam.server.app import build_app, build_service
from pybeam.server.audit import AuditLog
from pybeam.server.auth import Keys
from pybeam.server.loading import Loader
from pybeam.server.metrics import Metrics
from pybeam.server.models import ServedModel
from pybeam.server.settings import Settings
from pybeam.serving.sound_process import SoundProcesses
from pybeam.serving.transcripts import ServedTranscripts
from pybeam.speech.whisper import beam_search
from pybeam.text.tokenizer import Tokenizers
from support.paths import MODEL
from support.server_process import wait_until
from support.tiny_whisper import save_whisper

SEARCH = pybeam.fixed_beam(5, scoring=pybeam.scoring.power(1.0))


@cache
def decoder() -> pybeam.Decoder:
    """The decoder of the command line's defaults."""
    return pybeam.Decoder(pybeam.load_model(MODEL), SEARCH, log_probs=True)


@cache
def served(name: str = "es-en") -> ServedModel:
    return ServedModel(name, str(MODEL), decoder(), Tokenizers(MODEL))


def whisper(directory: Path) -> ServedModel:
    """A Whisper model of random weights, whose windows are decoded four at a time."""
    save_whisper(directory)
    model, schedule = pybeam.load_model(directory), pybeam.Fifo(4)
    transcripts = ServedTranscripts(
        "tiny (windows)", model, str(directory), beam_search(2), schedule
    )
    decoder = pybeam.Decoder(model, pybeam.fixed_beam(2), log_probs=True)
    return ServedModel("tiny", str(directory), decoder, Tokenizers(directory), transcripts)


@contextlib.asynccontextmanager
async def client(
    *,
    keys: tuple[str, ...] | Keys = (),
    warm: bool = True,
    model: ServedModel | None = None,
    tracer: Any = None,
    audit: AuditLog | None = None,
    sounds: SoundProcesses | None = None,
    loader: Loader | None = None,
    **settings: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a new app, whose service has started."""
    model = served() if model is None else model
    chosen, metrics, models = Settings(**settings), Metrics(), {model.name: model}
    service = build_service(models, metrics, chosen)
    keys = keys if isinstance(keys, Keys) else Keys(keys)
    around: Any = {"keys": keys, "tracer": tracer, "audit": audit, "sounds": sounds}
    around["loader"] = loader
    app = build_app(service, models, metrics, settings=chosen, **around)
    if warm:
        service.start(warm_up=False)
    try:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as found:
            found.app = app  # type: ignore[attr-defined]
            yield found
    finally:
        await asyncio.to_thread(service.close, timeout=0)


def run(test: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """Run a coroutine function on a client of a new app."""

    async def whole() -> Any:
        async with client(**options) as found:
            return await test(found)

    return asyncio.run(whole())


@contextlib.contextmanager
def listening(model: ServedModel, **settings: Any) -> Iterator[str]:
    """The address of a new app that listens on this machine, in a thread."""
    import uvicorn

    chosen, metrics, models = Settings(**settings), Metrics(), {model.name: model}
    service = build_service(models, metrics, chosen).start(warm_up=False)
    with contextlib.closing(service):
        app = build_app(service, models, metrics, settings=chosen)
        config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait_until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()
