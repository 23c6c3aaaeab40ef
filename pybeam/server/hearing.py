"""Who transcribes the turns of a live session, and when such a session is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fastapi import WebSocket

from pybeam.server.calls import Calls
from pybeam.server.endpoints.audio import SegmentLogProbs, known_model
from pybeam.server.errors import APIError, refused
from pybeam.server.gates import Gate
from pybeam.server.models import ServedModel
from pybeam.server.realtime_events import Session
from pybeam.server.settings import Settings
from pybeam.serving.transcripts import ServedTranscripts
from pybeam.speech import Utterance
from pybeam.speech.voice_activity import RATE
from pybeam.speech.whisper import TranscriptionOptions
from pybeam.speech.whisper.live import RunningTranscript
from pybeam.speech.whisper.recording_loop import RecordingLoop

# codes of RFC 6455: the server or the model goes; or the session has come to its end
GOING_AWAY, NORMAL = 1001, 1000


class Hearing(NamedTuple):
    """Who transcribes turns, and what was said before them."""

    model: ServedModel
    transcripts: ServedTranscripts
    recording_loop: RecordingLoop
    running: RunningTranscript
    log_probs: SegmentLogProbs | None


class Item(NamedTuple):
    """A turn that waits for its transcript."""

    id: str
    utterance: Utterance
    hearing: Hearing


async def hearing_of(socket: WebSocket, calls: Calls, session: Session) -> Hearing:
    """Return who transcribes a session, with the model that it names, or else its address.

    Raises:
        APIError: there is no such model, or it does not know the language.
    """
    asked = session.audio.input.transcription
    name = known_model(asked.model or socket.query_params.get("model"))
    model = calls.models.pick(name, takes_sound=True)
    if model.transcripts is None:
        problem = f"must be a Whisper model, but {model.name!r} is another"
        raise APIError(400, f"`model` {problem}", "model")
    if model.transcripts.sampling_rate != RATE:
        problem = f"must hear {RATE} Hz, but {model.name!r} hears {model.transcripts.sampling_rate}"
        raise APIError(400, f"`model` {problem}", "model")
    options = TranscriptionOptions(
        language=asked.language or None, initial_prompt=asked.prompt or None
    )
    # until the session ends, or takes another
    if model.gate not in socket.state.gates:
        model.gate.enter(socket.scope)
    try:
        # a prompt may be long
        recording_loop = await asyncio.to_thread(model.transcripts.recording_loop, options)
    except ValueError as error:
        raise refused(error) from error
    log_probs = SegmentLogProbs(model, model.transcripts) if session.include else None
    return Hearing(model, model.transcripts, recording_loop, recording_loop.running(), log_probs)


class Lifetime:
    """Knows when a live session is over, and why.

    That is when the server stops, when the session's model is unloaded or swapped, when the session has
    lasted for `Settings.max_live_seconds`, or when no sound has come for `Settings.keep_alive`.

    Args:
        gate: of the server.
        settings: of the server.

    Attributes:
        code: with which the session is to be closed.
        problem: the words for its client; None: the client needs none.
    """

    code: int
    problem: APIError | None

    def __init__(self, gate: Gate, settings: Settings) -> None:
        self._gate, self._patience = gate, settings.keep_alive
        self._seconds, self._heard = settings.max_live_seconds, time.monotonic()
        self._end = self._heard + self._seconds
        self._closing: dict[Gate, asyncio.Future[Any]] = {}
        self.code, self.problem = NORMAL, None

    def go_on(self) -> None:
        """Note that sound has come."""
        self._heard = time.monotonic()

    async def wait(
        self, coming: asyncio.Future[Any], model: Gate, is_busy: Callable[[], bool]
    ) -> bool:
        """Wait for something that comes. Returns False if the session is over before that.

        Args:
            coming: what is awaited.
            model: gate of the model that the session uses.
            is_busy: says whether turns are being transcribed, for which a client waits in silence.
        """
        for gate in (self._gate, model):
            if gate not in self._closing:
                self._closing[gate] = asyncio.ensure_future(gate.closing.wait())
        while not coming.done():
            if is_busy():
                self.go_on()
            if self._is_over(model):
                return False
            left = min(self._heard + self._patience, self._end) - time.monotonic()
            awaited = {coming, self._closing[self._gate], self._closing[model]}
            await asyncio.wait(awaited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return True

    def _is_over(self, model: Gate) -> bool:
        """Whether the session is over, and note why."""
        now = time.monotonic()
        if not self._gate.is_open:
            self.code = GOING_AWAY
        elif not model.is_open:
            problem = (
                "the model of this session has been unloaded or replaced; begin another session"
            )
            self.code, self.problem = GOING_AWAY, APIError(503, problem, code="model_unloaded")
        elif now >= self._end:
            problem = f"a session ends after {self._seconds:g} seconds; begin another"
            self.problem = APIError(400, problem, code="session_expired")
        else:
            return now >= self._heard + self._patience
        return True

    def stop(self) -> None:
        """Wait for nothing any more."""
        for one in self._closing.values():
            one.cancel()
