"""Keys of live sessions: what they pay, and that a session ends with its key."""

from __future__ import annotations

import pytest
from starlette.websockets import WebSocketDisconnect

from pybeam.server.auth import Keys
from pybeam.server.endpoints import realtime
from pybeam.server.key_file import table_of
from pybeam.server.settings import KeyLimits
from support import server_app
from support.live_sessions import MANUAL, append, application, connected, until, update
from support.spoken import sound_of

WHOLE = (sound_of([0.9] * 40) * 2**15).short()
COMMIT = {"type": "input_audio_buffer.commit"}
COMPLETED = "conversation.item.input_audio_transcription.completed"
FAILED = "conversation.item.input_audio_transcription.failed"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return server_app.whisper(tmp_path_factory.mktemp("whisper"))


@pytest.mark.parametrize("event", [append(WHOLE[:9000]), COMMIT], ids=["append", "turn"])
def test_a_key_that_is_withdrawn_ends_its_session(served, tmp_path, event):
    path, left = tmp_path / "keys.toml", table_of("one", "good", KeyLimits())
    path.write_text(left + table_of("two", "other", KeyLimits()))
    keys = Keys(path=str(path))
    with application(served, keys) as client:
        with connected(client, headers={"Authorization": "Bearer other"}) as socket:
            socket.receive_json()
            socket.send_json(update(**MANUAL))
            socket.send_json(append(WHOLE[:9000]))
            # its answer says that the sound has come
            socket.send_json({"type": "nothing"})
            until(socket, "error")
            path.write_text(left)
            keys.reload()
            socket.send_json(event)
            kind = FAILED if event is COMMIT else "error"
            assert until(socket, kind)[-1]["error"]["code"] == "invalid_api_key"
            with pytest.raises(WebSocketDisconnect) as error:
                socket.receive_json()
            assert error.value.code == realtime.REFUSED


@pytest.mark.slow
def test_sound_is_paid_whose_blocks_are_not_whole(served, tmp_path):
    """At another rate than the model's the resampler holds up to 20 ms until the sound ends."""
    path = tmp_path / "keys.toml"
    path.write_text(table_of("one", "good", KeyLimits(audio_seconds_per_day=100)))
    keys = Keys(path=str(path))
    with application(served, keys) as client:
        with connected(client, headers={"Authorization": "Bearer good"}) as socket:
            socket.receive_json()
            manual = {"format": {"type": "audio/pcm", "rate": 24000}, "turn_detection": None}
            socket.send_json(update(**manual))
            socket.receive_json()
            for num, is_turn in ((477, False), (2300, False), (2500, True)):
                socket.send_json(append(WHOLE[:num]))
                socket.send_json(COMMIT)
                found = until(socket, COMPLETED if is_turn else "error")
                if not is_turn:
                    assert found[-1]["error"]["code"] == "input_audio_buffer_commit_empty"
        caller = keys.admit(scope := {"path": "/v1/realtime"}, b"good") or scope["state"]["caller"]
        [meter] = caller.allowance._meters.values()
        assert meter.used == pytest.approx((477 + 2300 + 2500) / 24000, abs=0.002)
