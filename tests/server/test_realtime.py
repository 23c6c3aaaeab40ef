"""Live sound through a WebSocket, in the shape of OpenAI's realtime transcription."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

import pybeam
from pybeam.server import hearing
from pybeam.server.auth import Keys
from pybeam.server.endpoints import realtime
from pybeam.server.errors import APIError
from pybeam.server.key_file import table_of
from pybeam.server.realtime_events import Session, checked
from pybeam.server.settings import KeyLimits, Settings
from pybeam.speech import SpeechRules
from pybeam.speech.voice_activity import FRAME, RATE
from pybeam.speech.whisper import TranscriptionOptions, beam_search
from support import server_app
from support.live_sessions import (
    MANUAL,
    PATH,
    PCM,
    SITE,
    append,
    application,
    connected,
    serving,
    session,
    until,
    update,
)
from support.server_app import listening
from support.server_process import wait_until
from support.spoken import frank_activity, sound_of

OPTIONS = partial(TranscriptionOptions, temperatures=(0.0,), no_speech_threshold=None)
RULES = SpeechRules(max_speech=30.0, min_silence=0.5, padding=0.3)
# two turns, of which the second has not ended
WHOLE = (sound_of(np.repeat([0.1, 0.9, 0.1, 0.9], [20, 40, 40, 30])) * 2**15).short()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return server_app.whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """One try for each window; and the sound says itself where speech is."""
    monkeypatch.setattr(hearing, "TranscriptionOptions", OPTIONS)
    return frank_activity(monkeypatch, RULES)


@pytest.fixture(scope="module")
def client(served):
    with application(served, max_recordings=2) as found:
        yield found


def transcriber(served, **options: Any) -> pybeam.Transcriber:
    model, directory = served.decoder.model, served.directory
    return pybeam.Transcriber(model, directory, OPTIONS(**options), algorithm=beam_search(2))


COMPLETED = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"
COMMIT = {"type": "input_audio_buffer.commit"}
FAILED = "conversation.item.input_audio_transcription.failed"


@pytest.mark.slow
def test_the_client_of_openai(served, plain):
    """Turns are those of `Transcriber.live`, and their events come in their order."""
    openai = pytest.importorskip("openai", reason="the package openai is in the extra `test`")
    expected = list(transcriber(served, language="de").live([WHOLE], activity=plain))
    texts = ["", ""]
    for one in expected:
        texts[one.start > 60 * FRAME / RATE] += one.text
    assert all(texts)

    async def ask(url: str) -> list[Any]:
        client, events = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none"), []
        async with client.realtime.connect(
            model="whisper-1", extra_query={"intent": "transcription"}
        ) as connection:
            given = {**PCM, "transcription": {"model": "whisper-1", "language": "de"}}
            audio: Any = {"input": given}
            await connection.session.update(session={"type": "transcription", "audio": audio})
            for chunk in WHOLE.split(5000):
                await connection.input_audio_buffer.append(audio=append(chunk)["audio"])
            async for event in connection:
                events.append(event)
                if event.type == "input_audio_buffer.speech_started" and len(events) > 4:
                    # it says that the second turn has ended
                    await connection.input_audio_buffer.commit()
                if sum(one.type == COMPLETED for one in events) == 2:
                    return events
        return events

    with listening(served) as url:
        events = asyncio.run(ask(url))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["session.created", "session.updated"]
    done = [event for event in events if event.type == COMPLETED]
    assert [one.transcript for one in done] == [text.strip() for text in texts]
    for i, one in enumerate(done):
        mine = [event for event in events if getattr(event, "item_id", None) == one.item_id]
        started, stopped, committed, *deltas = mine[:-1]
        assert mine[-1] is one and {event.type for event in deltas} == {DELTA}
        assert "".join(event.delta for event in deltas).strip() == one.transcript
        seconds = (stopped.audio_end_ms - started.audio_start_ms) / 1000
        assert one.usage.seconds == pytest.approx(seconds, abs=0.002)
        assert committed.previous_item_id == (done[0].item_id if i else None)
    assert len({event.event_id for event in events}) == len(events)


def test_turns_that_the_client_commits(client, served):
    first, second = WHOLE[:30000], WHOLE[30000:50000]
    with session(client, **MANUAL, transcription={"prompt": "as"}) as socket:
        for chunk in first.split(7000):
            socket.send_json(append(chunk))
        socket.send_json({"type": "input_audio_buffer.commit"})
        found = until(socket, COMPLETED)
        kinds = [one["type"] for one in found]
        assert kinds[:2] == ["input_audio_buffer.committed", "conversation.item.added"]
        assert set(kinds[2:-1]) == {DELTA}
        [expected] = transcriber(served, initial_prompt="as").transcribe([first.float() / 2**15])
        assert found[-1]["transcript"] == expected.text != ""
        assert found[-1]["usage"] == {"type": "duration", "seconds": len(first) / RATE}
        # what is cleared is not heard
        socket.send_json(append(second))
        socket.send_json({"type": "input_audio_buffer.clear"})
        assert socket.receive_json()["type"] == "input_audio_buffer.cleared"
        socket.send_json({"type": "input_audio_buffer.commit", "event_id": "mine"})
        error = socket.receive_json()["error"]
        assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "mine")


BAD = [
    ("[1]", None, "must be a JSON object"),
    ({"type": "response.create"}, "type", "`type` must be one of session.update"),
    ({"type": "input_audio_buffer.append"}, "audio", "`audio`: Field required"),
    ({"type": "input_audio_buffer.append", "audio": "?"}, "audio", "`audio` must be base64"),
    ({"type": "input_audio_buffer.commit", "more": 1}, "more", "is no field of this request"),
    ({"type": "session.update", "session": {"type": "realtime"}}, "session.type", "session.type"),
    (
        update(turn_detection={"type": "semantic_vad"}),
        "session.audio.input.turn_detection.type",
        "server_vad",
    ),
    (
        update(turn_detection={"type": "server_vad", "threshold": 2}),
        "session.audio.input.turn_detection.threshold",
        "less than 1",
    ),
    (update(format={"type": "audio/mp3"}), "session.audio.input.format", "audio/pcm"),
    (update(format={"type": "audio/pcm", "rate": 1}), "session.audio.input.format.rate", "1000"),
    (update(transcription={"language": "xx"}), "language", "xx"),
    (update(transcription={"model": "nobody"}), "model", "must be one of tiny"),
]


def test_an_event_that_is_wrong_costs_nothing_else(client):
    with session(client, **MANUAL) as socket:
        for event, param, message in BAD:
            if isinstance(event, str):
                socket.send_text(event)
            else:
                socket.send_json({**event, "event_id": "one"})
            answer = socket.receive_json()
            assert answer["type"] == "error", event
            error = answer["error"]
            assert error["param"] == param and message in error["message"], error
            assert error["event_id"] == (None if isinstance(event, str) else "one")
        socket.send_bytes(b"\0")
        assert "in text" in socket.receive_json()["error"]["message"]
        socket.send_json(append(WHOLE[:9000]))
        socket.send_json({"type": "input_audio_buffer.commit"})
        assert until(socket, COMPLETED)


def test_events_that_are_large_are_refused_in_little_memory(client):
    with session(client, **MANUAL) as socket:
        socket.send_json({**update(), "event_id": "x" * (1 << 16)})
        assert "at most 65536 characters" in socket.receive_json()["error"]["message"]
    with pytest.raises(ValidationError) as found:
        Session.model_validate({"include": ["x"] * 9})
    assert found.value.error_count() == 1
    content = {**append(WHOLE[:9]), **dict.fromkeys(map(str, range(20_000)))}
    tracemalloc.start()
    with pytest.raises(APIError, match="`0` is no field"):
        checked(content, 1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 18


def test_half_a_character_costs_nothing_else(client):
    half = "\ud800"
    with session(client, **MANUAL) as socket:
        socket.send_json({"type": "nothing", "event_id": half})
        # as a network has it
        answer = socket.receive_text().encode()
        assert json.loads(answer)["error"]["event_id"] == half
        socket.send_json(update(transcription={"prompt": half}))
        assert "must be Unicode" in socket.receive_json()["error"]["message"]


def test_log_probabilities_of_tokens(client, served):
    with session(client, **MANUAL) as socket:
        wanted = ["item.input_audio_transcription.logprobs"]
        asked = {"type": "transcription", "include": wanted}
        socket.send_json({"type": "session.update", "session": asked})
        assert socket.receive_json()["session"]["include"] == wanted
        socket.send_json(append(WHOLE[:30000]))
        socket.send_json({"type": "input_audio_buffer.commit"})
        *others, last = until(socket, COMPLETED)
        parts = [one for event in others for one in event.get("logprobs", ())]
        assert (
            parts == last["logprobs"]
            and "".join(one["token"] for one in parts) == last["transcript"]
        )
        assert all(one["logprob"] < 0 for one in parts)


def test_an_update_changes_what_it_names(client):
    with session(client, turn_detection={"type": "server_vad", "threshold": 0.7}) as socket:
        changes = {"format": {"type": "audio/pcma"}, "turn_detection": {"silence_duration_ms": 300}}
        socket.send_json(update(**changes, transcription={"language": "fr"}))
        given = socket.receive_json()["session"]["audio"]["input"]
        assert given["format"] == {"type": "audio/pcma"}
        assert given["turn_detection"]["threshold"] == 0.7
        assert given["turn_detection"]["silence_duration_ms"] == 300
        assert given["transcription"]["language"] == "fr"


def test_the_first_version_of_the_api(client):
    headers = {"OpenAI-Beta": "realtime=v1"}
    with connected(client, headers=headers) as socket:
        assert socket.receive_json()["type"] == "transcription_session.created"
        asked = {"input_audio_format": "g711_ulaw", "turn_detection": None}
        socket.send_json({"type": "transcription_session.update", "session": asked})
        answer = socket.receive_json()
        assert answer["type"] == "transcription_session.updated"
        shown = answer["session"]
        assert (shown["input_audio_format"], shown["turn_detection"]) == ("g711_ulaw", None)


def refused(client: TestClient, path: str = PATH, **how: Any) -> int:
    with pytest.raises(WebSocketDenialResponse) as found:
        with client.websocket_connect(path, **how):
            pass
    assert found.value.json()["error"]["message"]
    return found.value.status_code


def test_a_handshake_that_is_refused(client):
    assert refused(client, f"{SITE}?intent=conversation") == 400
    assert refused(client, f"{PATH}&model=nobody") == 404
    with session(client), session(client):
        assert refused(client) == 429
    # both places are free again
    with session(client):
        pass


def test_pages_of_other_sites_open_no_session(client):
    """Browsers let every page open a WebSocket to every site, and say for which page it is."""
    assert refused(client, headers={"Origin": "http://elsewhere.example"}) == 403
    assert refused(client, headers={"Host": "elsewhere.example"}) == 421


def test_keys_open_sessions_and_pay_for_turns(served, tmp_path):
    path, limits = tmp_path / "keys.toml", KeyLimits(audio_seconds_per_day=5)
    path.write_text(table_of("one", "good", limits) + table_of("two", "other", KeyLimits()))
    keys = Keys(path=str(path))
    with application(served, keys) as client:
        assert refused(client) == refused(client, headers={"Authorization": "Bearer bad"}) == 401
        # as a browser has it, whose WebSockets have no headers
        protocols = ["realtime", "openai-insecure-api-key.good"]
        with connected(client, subprotocols=protocols) as socket:
            assert socket.accepted_subprotocol == "realtime"
            socket.receive_json()
            socket.send_json(update(**MANUAL))
            socket.receive_json()
            # six seconds
            for _ in range(2):
                socket.send_json(append(WHOLE[: 3 * RATE]))
            socket.send_json(append(WHOLE[:RATE]))
            error = socket.receive_json()["error"]
            assert error["code"] == "rate_limit_exceeded" and "seconds of sound" in error["message"]
            # what has been paid is transcribed
            socket.send_json({"type": "input_audio_buffer.commit"})
            assert until(socket, COMPLETED)[-1]["usage"]["seconds"] == 6


def test_a_server_that_stops_transcribes_what_has_come(served):
    with application(served) as client, session(client, **PCM) as socket:
        socket.send_json(append(WHOLE))
        found = until(socket, COMPLETED)
        gate = client.app.state.gate
        client.portal.call(gate.closing.set)
        # somebody was speaking still
        found = until(socket, COMPLETED)
        assert found[-1]["transcript"]
        with pytest.raises(WebSocketDisconnect) as error:
            socket.receive_json()
        assert error.value.code == hearing.GOING_AWAY
        assert refused(client) == 503


def test_a_client_that_says_nothing_is_left(served):
    with application(served, keep_alive=0.05) as client, connected(client) as socket:
        assert socket.receive_json()["type"] == "session.created"
        with pytest.raises(WebSocketDisconnect) as error:
            socket.receive_json()
        assert error.value.code == hearing.NORMAL


def test_sound_that_waits_for_a_commit_is_bounded(served):
    with application(served, max_audio=4 * 40000) as client, session(client, **MANUAL) as socket:
        for num in (30000, 20000):
            socket.send_json(append(WHOLE[:num]))
        error = socket.receive_json()["error"]
        assert error["param"] == "audio" and "must wait for a commit: 2 seconds" in error["message"]
        socket.send_json({"type": "input_audio_buffer.commit"})
        assert until(socket, COMPLETED)[-1]["usage"]["seconds"] == 30000 / RATE


@pytest.mark.slow
def test_a_message_that_is_too_large_ends_its_session(served):
    """As `pybeam serve` listens, which also counts the connection."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    settings = Settings(port=0, max_body=9000, max_connections_per_client=2)
    with application(served, max_body=9000) as client, serving(client.app, settings) as port:
        for _ in range(5):
            with connect(
                f"ws://127.0.0.1:{port}/v1/realtime", source_address=("127.0.0.4", 0)
            ) as socket:
                assert "session.created" in socket.recv()
                socket.send("x" * 8000)
                assert "must be a JSON object" in socket.recv()
                socket.send("x" * 10000)
                with pytest.raises(ConnectionClosed) as error:
                    socket.recv()
                assert error.value.rcvd.code == 1009


def test_a_client_that_leaves_takes_its_work_along(served, monkeypatch):
    begun = []
    real = realtime.RealtimeSession._transcribe_one

    async def slow(self, item) -> None:
        begun.append(item)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            begun.append(None)
            raise
        await real(self, item)

    monkeypatch.setattr(realtime.RealtimeSession, "_transcribe_one", slow)
    with application(served) as client:
        with session(client, **MANUAL) as socket:
            socket.send_json(append(WHOLE[:9000]))
            socket.send_json({"type": "input_audio_buffer.commit"})
            wait_until(lambda: begun)
        assert begun[-1] is None


def test_a_session_has_a_line_in_the_log_and_a_count(client, caplog):
    caplog.set_level("INFO", logger="pybeam.server.access")
    with session(client, **MANUAL) as socket:
        socket.send_json(append(WHOLE[:9000]))
        socket.send_json({"type": "input_audio_buffer.commit"})
        until(socket, COMPLETED)
    [fields] = [one.fields for one in caplog.records]
    assert (fields["path"], fields["status"], fields["method"]) == ("/v1/realtime", 101, "GET")
    assert (fields["model"], fields["sources"]) == ("tiny", 1)
    count = 'pybeam:http_answers_total{path="/v1/realtime",status="101"}'
    assert count in client.get("/metrics").text
