"""Live sessions with the server's application in this process."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
import uvicorn
from starlette.testclient import TestClient

from pybeam.server.app import build_app, build_service
from pybeam.server.auth import Keys
from pybeam.server.lifecycle import Server
from pybeam.server.metrics import Metrics
from pybeam.server.settings import Settings
from pybeam.speech.voice_activity import RATE
from support.server_process import wait_until

SITE = "ws://localhost/v1/realtime"
PATH = f"{SITE}?intent=transcription"
PCM = {"format": {"type": "audio/pcm", "rate": RATE}}
MANUAL = {**PCM, "turn_detection": None}


@contextlib.contextmanager
def application(model, keys: Keys | None = None, **settings: Any) -> Iterator[TestClient]:
    chosen, metrics, models = Settings(**settings), Metrics(), {model.name: model}
    service = build_service(models, metrics, chosen).start(warm_up=False)
    with contextlib.closing(service):
        app = build_app(service, models, metrics, settings=chosen, keys=keys)
        with TestClient(app, base_url="http://localhost") as client:
            yield client


@contextlib.contextmanager
def serving(app: Any, settings: Settings) -> Iterator[int]:
    """The port at which this app listens as `pybeam serve` does, in a thread."""
    config = Server(lambda: app, settings).config
    config.app = app
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def update(**given: Any) -> dict[str, Any]:
    return {
        "type": "session.update",
        "session": {"type": "transcription", "audio": {"input": given}},
    }


def append(samples: torch.Tensor) -> dict[str, str]:
    audio = base64.b64encode(samples.numpy().tobytes()).decode()
    return {"type": "input_audio_buffer.append", "audio": audio}


@contextlib.contextmanager
def connected(client: TestClient, **how: Any) -> Iterator[Any]:
    """A WebSocket, which has ended on both sides afterwards."""
    gate = client.app.state.gate
    before = gate.num_active
    with client.websocket_connect(PATH, **how) as socket:
        yield socket
        socket.close(1000)
        wait_until(lambda: gate.num_active == before)


@contextlib.contextmanager
def session(client: TestClient, **given: Any) -> Iterator[Any]:
    """A session that has begun, with this input."""
    with connected(client) as socket:
        assert socket.receive_json()["type"] == "session.created"
        socket.send_json(update(**given))
        assert socket.receive_json()["type"] == "session.updated"
        yield socket


def until(socket: Any, kind: str) -> list[dict[str, Any]]:
    """The events up to one of this type."""
    found = [socket.receive_json()]
    while found[-1]["type"] != kind:
        found.append(socket.receive_json())
    return found
