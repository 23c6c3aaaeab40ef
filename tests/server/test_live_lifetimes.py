"""When live sessions end, though their clients would go on."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from pybeam.server import hearing
from pybeam.server.auth import Keys
from pybeam.server.endpoints.realtime import RealtimeSession
from pybeam.server.hearing import GOING_AWAY, NORMAL
from pybeam.server.key_file import table_of
from pybeam.server.models import ServedModel
from pybeam.server.settings import KeyLimits
from pybeam.text.tokenizer import Tokenizers
from support import server_app
from support.live_sessions import MANUAL, PATH, append, application, connected, session, until
from support.live_sessions import update as changed
from support.server_process import wait_until
from support.spoken import sound_of

WHOLE = (sound_of([0.9] * 40) * 2**15).short()
COMMIT = {"type": "input_audio_buffer.commit"}
CLEAR = {"type": "input_audio_buffer.clear"}
COMPLETED = "conversation.item.input_audio_transcription.completed"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return server_app.whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
def ahead(monkeypatch):
    """The seconds by which the clock of sessions is ahead, in a list."""
    found = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + found[0])
    monkeypatch.setattr(hearing, "time", clock)
    return found


def closing_code(socket) -> int:
    with pytest.raises(WebSocketDisconnect) as error:
        while True:
            socket.receive_json()
    return error.value.code


def answered(socket, event) -> None:
    """Send an event, and wait until it has been taken: the answer to the one behind it says so."""
    for one in (event, {"type": "nothing", "event_id": "last"}):
        socket.send_json(one)
    while socket.receive_json().get("error", {}).get("event_id") != "last":
        pass


@pytest.mark.thinned(most=2)
@pytest.mark.parametrize(
    "event",
    [CLEAR, changed(), append(torch.zeros(0)), {"type": "nothing"}],
    ids=["clear", "update", "empty", "wrong"],
)
def test_only_sound_keeps_a_session(served, ahead, event):
    with application(served, keep_alive=75) as client, session(client, **MANUAL) as socket:
        for _ in range(3):
            ahead[0] += 50
            answered(socket, append(WHOLE[:900]))
        ahead[0] += 50
        answered(socket, event)
        ahead[0] += 50
        socket.send_json(event)
        assert closing_code(socket) == NORMAL


def test_a_session_has_a_longest_time(served, ahead):
    """The sound that has come until then is transcribed."""
    with (
        application(served, max_live_seconds=500, keep_alive=900) as client,
        session(client, **MANUAL) as socket,
    ):
        answered(socket, append(WHOLE[:9000]))
        ahead[0] += 501
        socket.send_json({"type": "nothing"})
        found = until(socket, COMPLETED)
        [error] = [one["error"] for one in found if one.get("error", {}).get("code")]
        assert error["code"] == "session_expired" and "after 500 seconds" in error["message"]
        assert found[-1]["transcript"]
        assert closing_code(socket) == NORMAL


@pytest.mark.slow
def test_a_session_lets_its_model_go(tmp_path):
    model = server_app.whisper(tmp_path)
    with application(model) as client, session(client, **MANUAL) as socket:
        manager = client.app.state.calls.manager
        answered(socket, append(WHOLE[:9000]))
        assert not model.is_idle
        client.portal.call(manager.unload, model.name)
        [*_, error] = until(socket, "error")
        assert error["error"]["code"] == "model_unloaded"
        assert until(socket, COMPLETED)[-1]["transcript"]
        assert closing_code(socket) == GOING_AWAY
        wait_until(lambda: model.is_idle and not manager.all)


def test_a_session_that_takes_another_model_leaves_the_first(tmp_path):
    first = server_app.whisper(tmp_path)
    directory, transcripts = first.directory, first.transcripts
    other = ServedModel("other", directory, first.decoder, Tokenizers(directory), transcripts)
    with application(first) as client, session(client, **MANUAL) as socket:
        client.app.state.calls.models.put(other)
        assert not first.is_idle
        socket.send_json(changed(transcription={"model": "other"}))
        until(socket, "session.updated")
        assert first.is_idle and not other.is_idle
        # one that is refused changes nothing
        socket.send_json(changed(transcription={"model": "tiny", "language": "xx"}))
        until(socket, "error")
        assert first.is_idle and not other.is_idle
    assert other.is_idle


def test_a_turn_that_ends_keeps_the_model_that_a_session_takes(tmp_path, monkeypatch):
    """It ends when the other model has been entered, and is not yet that of the session."""
    first = server_app.whisper(tmp_path)
    transcripts = copy.copy(first.transcripts)
    other = ServedModel("other", first.directory, first.decoder, Tokenizers(tmp_path), transcripts)
    is_entered, has_ended = threading.Event(), threading.Event()

    def recording_loop(options):
        is_entered.set()
        assert has_ended.wait(10)
        return first.transcripts.recording_loop(options)

    async def turn(session, item):
        assert await asyncio.to_thread(is_entered.wait, 10)

    leave = RealtimeSession._leave_models

    def ended(session):
        leave(session)
        if is_entered.is_set():
            has_ended.set()

    monkeypatch.setattr(transcripts, "recording_loop", recording_loop)
    monkeypatch.setattr(RealtimeSession, "_transcribe_one", turn)
    monkeypatch.setattr(RealtimeSession, "_leave_models", ended)
    with application(first) as client, session(client, **MANUAL) as socket:
        client.app.state.calls.models.put(other)
        for event in (append(WHOLE[:9000]), COMMIT, changed(transcription={"model": "other"})):
            socket.send_json(event)
        until(socket, "session.updated")
        assert first.is_idle and not other.is_idle
    assert other.is_idle


def test_a_key_leaves_places_to_others(served, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(table_of("one", "a", KeyLimits()) + table_of("two", "b", KeyLimits()))
    headers = [{"Authorization": f"Bearer {key}"} for key in "ab"]
    with application(served, Keys(path=str(path)), max_recordings=2) as client:
        with connected(client, headers=headers[0]):
            with pytest.raises(WebSocketDenialResponse) as error:
                with client.websocket_connect(PATH, headers=headers[0]):
                    pass
            assert error.value.status_code == 429
            with connected(client, headers=headers[1]):
                pass
