"""OpenAI's realtime transcription: sound in, by a WebSocket, and texts of its turns out.

See https://platform.openai.com/docs/guides/realtime-transcription.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import secrets
from collections import deque
from typing import Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from pybeam.server.auth import Caller, Withdrawn, bearer_of, charge, check_sound
from pybeam.server.calls import Calls
from pybeam.server.connections import REALTIME
from pybeam.server.errors import APIError, content_of, from_service, refused, respond
from pybeam.server.gates import Gate
from pybeam.server.hearing import NORMAL, Hearing, Item, Lifetime, hearing_of
from pybeam.server.realtime_events import (
    Append,
    Event,
    Session,
    SessionUpdate,
    changed,
    checked,
    event_of,
    message_item,
    shown_in_first_version,
)
from pybeam.server.schemas import Serving
from pybeam.server.turns import CommittedTurns, DetectedTurns, Turns
from pybeam.serving.together import together
from pybeam.speech import SpeechStart, Utterance

router = APIRouter()
logger = logging.getLogger(__name__)

# the subprotocol of browsers, which have no headers
PROTOCOL = "realtime"
FIRST_VERSION = "realtime=v1"
# turns that wait for their transcripts; then no more sound is taken
MOST_WAITING = 4
# of sound that a client commits, as at OpenAI
SHORTEST_MS = 100
# codes of RFC 6455: the server wants this client no longer, or something is wrong with it
REFUSED, FAILED = 1008, 1011


@router.websocket(REALTIME)
async def realtime(socket: WebSocket) -> None:
    """Transcribe the sound of one client until it leaves."""
    calls: Calls = socket.app.state.calls
    with contextlib.ExitStack() as stack:
        try:
            intent = socket.query_params.get("intent", "transcription")
            if intent != "transcription":
                problem = "must be transcription, the only one here, but is another"
                raise APIError(400, f"`intent` {problem}", "intent")
            hearing = await hearing_of(socket, calls, Session())
            stack.enter_context(calls.recordings.one(socket))
        except APIError as error:
            await socket.send_denial_response(respond(REALTIME, error))
            return
        protocols = socket.scope.get("subprotocols", ())
        await socket.accept(PROTOCOL if PROTOCOL in protocols else None)
        await RealtimeSession(socket, calls, hearing).run()


class RealtimeSession:
    """A session: it takes events, one after the other, and meanwhile transcribes turns in their order.

    Args:
        socket: of the client, accepted.
        calls: what endpoints share.
        hearing: who transcribes, until the client wants another.
    """

    def __init__(self, socket: WebSocket, calls: Calls, hearing: Hearing) -> None:
        self._socket, self._calls, self._hearing = socket, calls, hearing
        self._gate: Gate = socket.app.state.gate
        self._lifetime = Lifetime(self._gate, calls.settings)
        self._id, self._session = _new_id("sess"), Session()
        # made when sound comes; and the seconds before it
        self._turns: Turns | None = None
        self._seconds = 0.0
        self._open_id = _new_id("item")
        self._last_id: str | None = None
        self._items: asyncio.Queue[Item | None] = asyncio.Queue(MOST_WAITING)
        self._num_items = 0
        # turns whose transcripts are missing, which keep their models
        self._untold: deque[Item] = deque()
        # whether another model is entered, and not yet that of the session
        self._is_changing = False

    async def run(self) -> None:
        """Go on until the client leaves, or the session is over."""
        version = self._socket.headers.get("openai-beta") == FIRST_VERSION
        code = NORMAL
        try:
            await self._send_session("created", is_first_version=version)
            await together([self._listen(), self._transcribe()])
            code = self._lifetime.code
        except WebSocketDisconnect:
            return
        except Withdrawn:
            code = REFUSED
        except Exception as error:
            code = FAILED
            logger.error("a live session failed", exc_info=error)
        # the client may have gone
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await self._socket.close(code)

    async def _listen(self) -> None:
        """Take events. The last turn is transcribed when no more are taken."""
        try:
            while (message := await self._next()) is not None:
                await self._take(message)
        finally:
            self._lifetime.stop()
        if self._lifetime.problem is not None:
            await self._send("error", error=content_of(self._lifetime.problem))
        await self._cut(await self._ended())
        await self._items.put(None)

    async def _next(self) -> dict[str, Any] | None:
        """Wait for the next message; None: the session is over."""
        coming = asyncio.ensure_future(self._socket.receive())
        try:
            model = self._hearing.model.gate
            if not await self._lifetime.wait(coming, model, lambda: bool(self._untold)):
                return None
            message = dict(coming.result())
        finally:
            coming.cancel()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", NORMAL))
        return message

    async def _take(self, message: dict[str, Any]) -> None:
        """Do what an event asks. One that is wrong gets an error, and the session goes on."""
        event_id = None
        state, text = self._socket.scope.setdefault("state", {}), message.get("text")
        state["request_bytes"] = state.get("request_bytes", 0) + len(text or "")
        try:
            content = event_of(text)
            given = content.get("event_id")
            event_id = given if isinstance(given, str) else None
            await self._do(checked(content, len(text or "")))
        except APIError as error:
            await self._send("error", error={**content_of(error), "event_id": event_id})
            if error.status == 401:
                raise Withdrawn from error
        except (ImportError, TypeError, ValueError) as error:
            await self._send("error", error={**content_of(refused(error)), "event_id": event_id})

    async def _do(self, event: Event) -> None:
        match event:
            case SessionUpdate():
                await self._update(event)
            case Append():
                await self._append(event)
            case Event(type="input_audio_buffer.commit"):
                await self._commit()
            case Event(type="input_audio_buffer.clear"):
                self._forget()
                await self._send("input_audio_buffer.cleared")

    async def _update(self, event: SessionUpdate) -> None:
        session, old = changed(self._session, event), self._session.audio.input
        new = session.audio.input
        if new.turn_detection is not None:
            # rules that contradict each other are refused now
            _ = new.turn_detection.rules
        asked = new.transcription, session.include
        if asked != (old.transcription, self._session.include):
            self._is_changing = True
            try:
                self._hearing = await hearing_of(self._socket, self._calls, session)
            finally:
                self._is_changing = False
                self._leave_models()
        if (new.format, new.turn_detection) != (old.format, old.turn_detection):
            self._forget()
        self._session = session
        is_first = event.type.startswith("transcription_session")
        await self._send_session("updated", is_first_version=is_first)

    def _leave_models(self) -> None:
        """Leave models that neither turns nor the sound to come need, so that they can be unloaded.

        While the session changes its model, all of them are kept until it has the other one.
        """
        if self._is_changing:
            return
        needed = {self._hearing.model.gate, *(one.hearing.model.gate for one in self._untold)}
        gates: list[Gate] = self._socket.state.gates
        for gate in [one for one in gates if one is not self._gate and one not in needed]:
            gates.remove(gate)
            gate.leave()

    def _caller(self) -> Caller | None:
        """Return whose session it is; None: anybody's. Raises APIError, 401, if the key is withdrawn."""
        keys, scope = self._calls.keys, self._socket.scope
        return keys.know(scope, bearer_of(scope), "audio_seconds") if keys else None

    async def _append(self, event: Append) -> None:
        self._caller()
        check_sound(self._socket)
        try:
            chunk = base64.b64decode(event.audio, validate=True)
        except ValueError:
            raise APIError(400, "`audio` must be base64", "audio") from None
        before = 0.0 if self._turns is None else self._turns.seconds
        found = await asyncio.to_thread(self._heard, chunk)
        assert self._turns is not None
        if seconds := self._turns.seconds - before:
            self._lifetime.go_on()
            charge(self._socket, "audio_seconds", seconds)
        await self._cut(found)

    def _heard(self, chunk: bytes) -> list[SpeechStart | Utterance]:
        if self._turns is None:
            given = self._session.audio.input
            how = self._seconds, given.rate, given.encoding
            if given.turn_detection is None:
                self._turns = CommittedTurns(*how, self._calls.settings.max_audio)
            else:
                self._turns = DetectedTurns(*how, given.turn_detection.rules)
        return self._turns.more(chunk)

    async def _commit(self) -> None:
        found = await self._ended()
        if not found:
            code = "input_audio_buffer_commit_empty"
            problem = f"there is nothing to commit in the sound that has come, or less than {SHORTEST_MS} ms"
            raise APIError(400, problem, code=code)
        await self._cut(found)

    async def _ended(self) -> list[SpeechStart | Utterance]:
        """Return what is left of the sound, and begin anew; none of sound that is too short."""
        if self._turns is None:
            return []
        turns, before = self._turns, self._turns.seconds
        found = await asyncio.to_thread(turns.end)
        charge(self._socket, "audio_seconds", turns.seconds - before)
        self._forget()
        return found if round(1000 * turns.seconds, 3) >= SHORTEST_MS else []

    def _forget(self) -> None:
        """Begin anew with the sound that comes."""
        self._seconds += 0.0 if self._turns is None else self._turns.seconds
        self._turns = None

    async def _cut(self, found: list[SpeechStart | Utterance]) -> None:
        """Say what has been heard, and let turns wait for their transcripts."""
        is_detected = self._session.audio.input.turn_detection is not None
        for one in found:
            if isinstance(one, SpeechStart):
                self._open_id = _new_id("item")
                if is_detected:
                    await self._send(
                        "input_audio_buffer.speech_started",
                        audio_start_ms=round(1000 * one.start),
                        item_id=self._open_id,
                    )
                continue
            item_id, before = self._open_id, self._last_id
            if is_detected:
                await self._send(
                    "input_audio_buffer.speech_stopped",
                    audio_end_ms=round(1000 * one.end),
                    item_id=item_id,
                )
            named = {"item_id": item_id, "previous_item_id": before}
            await self._send("input_audio_buffer.committed", **named)
            await self._send(
                "conversation.item.added", item=message_item(item_id), previous_item_id=before
            )
            self._last_id = item_id
            self._num_items += 1
            self._socket.state.log_fields = {
                "model": self._hearing.model.name,
                "sources": self._num_items,
            }
            item = Item(item_id, one, self._hearing)
            self._untold.append(item)
            await self._items.put(item)

    async def _transcribe(self) -> None:
        """Transcribe turns, one after the other, since each sees what was said before."""
        while (item := await self._items.get()) is not None:
            try:
                await self._transcribe_one(item)
            except WebSocketDisconnect:
                raise
            except Exception as error:
                problem = content_of(from_service(error))
                await self._tell(item, "failed", error=problem)
                if isinstance(error, APIError) and error.status == 401:
                    raise Withdrawn from error
            finally:
                self._untold.popleft()
                self._lifetime.go_on()
                self._leave_models()

    async def _transcribe_one(self, item: Item) -> None:
        socket, hearing = self._socket, item.hearing
        # each turn is a request of the key, and its sound has been paid
        if (caller := self._caller()) is not None:
            caller.allowance.begin()
        late = "the turn was not transcribed"
        decoder = hearing.transcripts.decoder
        decode = self._calls.parts(socket, hearing.model, Serving(), late, decoder)
        recording = hearing.running.recording(item.utterance)
        text, log_probs = "", list[dict[str, Any]]()
        coming = hearing.transcripts.transcribe(hearing.recording_loop, recording, decode)
        async for news in coming:
            segments = hearing.running.add(news)
            delta = "".join(segment.text for segment in segments)
            delta = delta if text else delta.lstrip()
            if not delta:
                continue
            own = None if hearing.log_probs is None else hearing.log_probs(segments)
            text += delta
            log_probs += own or []
            await self._tell(item, "delta", delta=delta, **_with_log_probs(own))
        seconds = item.utterance.end - item.utterance.start
        usage = {"type": "duration", "seconds": round(seconds, 3)}
        more = _with_log_probs(None if hearing.log_probs is None else log_probs)
        await self._tell(item, "completed", transcript=text.strip(), usage=usage, **more)

    async def _send_session(self, what: str, *, is_first_version: bool) -> None:
        if is_first_version:
            shown = {
                "object": "realtime.transcription_session",
                **shown_in_first_version(self._session),
            }
            await self._send(f"transcription_session.{what}", session={"id": self._id, **shown})
        else:
            shown = self._session.model_dump()
            await self._send(f"session.{what}", session={"id": self._id, **shown})

    async def _tell(self, item: Item, what: str, **fields: Any) -> None:
        """Send what has become of the transcript of a turn."""
        kind = f"conversation.item.input_audio_transcription.{what}"
        await self._send(kind, item_id=item.id, content_index=0, **fields)

    async def _send(self, kind: str, **fields: Any) -> None:
        # in ASCII: what clients have said may hold half a character
        content = {"type": kind, "event_id": _new_id("event"), **fields}
        await self._socket.send_text(json.dumps(content, separators=(",", ":")))


def _with_log_probs(log_probs: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {} if log_probs is None else {"logprobs": log_probs}


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
