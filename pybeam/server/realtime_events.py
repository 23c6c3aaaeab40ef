"""The events of clients of a live session, and what they say of it, as OpenAI's realtime API has them.

See https://platform.openai.com/docs/api-reference/realtime-client-events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from pybeam.server.errors import APIError, wrong_body
from pybeam.server.schemas import Body, Listed, Text
from pybeam.speech.containers import RATES
from pybeam.speech.pcm import Encoding
from pybeam.speech.utterances import LIVE_RULES
from pybeam.speech.voice_activity import SpeechRules

# of G.711, in Hz
TELEPHONE = 8000
MAX_PADDING_MS, MAX_SILENCE_MS = 5000, 10_000
# characters of an event that brings no sound
LARGEST = 1 << 16
ENCODINGS: dict[str, Encoding] = {
    "audio/pcm": "s16le",
    "audio/pcmu": "mulaw",
    "audio/pcma": "alaw",
}
# as the API's first version calls them
FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}


class PCM(Body):
    """Samples of 16 bits. OpenAI takes 24 kHz alone."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: int = Field(default=24000, ge=RATES.start, lt=RATES.stop)


class Telephone(Body):
    """Samples of G.711."""

    type: Literal["audio/pcmu", "audio/pcma"]


class TurnDetection(Body):
    """A turn ends where nobody speaks."""

    type: Literal["server_vad"] = "server_vad"
    threshold: float = Field(default=0.5, gt=0, lt=1)
    prefix_padding_ms: int = Field(default=300, ge=0, le=MAX_PADDING_MS)
    silence_duration_ms: int = Field(default=500, ge=0, le=MAX_SILENCE_MS)
    # of sessions that answer
    create_response: bool | None = None
    interrupt_response: bool | None = None

    @property
    def rules(self) -> SpeechRules:
        return SpeechRules(
            threshold=self.threshold,
            max_speech=LIVE_RULES.max_speech,
            min_silence=self.silence_duration_ms / 1000,
            padding=self.prefix_padding_ms / 1000,
        )


class Transcribing(Body):
    """How turns are transcribed."""

    model: Text | None = None
    language: Text | None = None
    prompt: Text | None = None


class Input(Body):
    """The sound, and what becomes of it."""

    format: Annotated[PCM | Telephone, Field(discriminator="type")] = PCM()
    transcription: Transcribing = Transcribing()
    turn_detection: TurnDetection | None = TurnDetection()
    noise_reduction: None = None

    @property
    def rate(self) -> int:
        return self.format.rate if isinstance(self.format, PCM) else TELEPHONE

    @property
    def encoding(self) -> Encoding:
        return ENCODINGS[self.format.type]


class Audio(Body):
    input: Input = Input()


class Session(Body):
    """All that is said of a session."""

    type: Literal["transcription"] = "transcription"
    audio: Audio = Audio()
    include: Listed[Literal["item.input_audio_transcription.logprobs"]] = Field(
        default=[], max_length=1
    )


class Event(Body):
    type: str
    event_id: str | None = None


class SessionUpdate(Event):
    session: dict[str, Any]


class Append(Event):
    audio: str


KINDS: dict[str, type[Event]] = {
    "session.update": SessionUpdate,
    "transcription_session.update": SessionUpdate,
    "input_audio_buffer.append": Append,
    "input_audio_buffer.commit": Event,
    "input_audio_buffer.clear": Event,
}
Read = TypeVar("Read", bound=Body)


def event_of(text: str | None) -> dict[str, Any]:
    """Return the object that a message is. Raises APIError if it is none."""
    try:
        content = json.loads(text or "")
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise APIError(400, "a message must be a JSON object, in text")
    return content


def checked(content: dict[str, Any], size: int) -> Event:
    """Return the event of a message with so many characters.

    Raises:
        APIError: there is no such event, or it is wrong or too large.
    """
    name = content.get("type")
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise APIError(400, f"`type` must be one of {', '.join(KINDS)}", "type")
    if size > LARGEST and kind is not Append:
        raise APIError(400, f"an event without sound must have at most {LARGEST} characters")
    # pydantic makes an error of each, of which a message may have a million
    unknown = next((one for one in content if one not in kind.model_fields), None)
    if unknown is not None:
        raise wrong_body([{"type": "extra_forbidden", "loc": (unknown[:LARGEST],), "msg": ""}])
    return read(kind, content)


def changed(session: Session, update: SessionUpdate) -> Session:
    """Return what a session is after an update, of which what it does not name stays.

    Raises:
        APIError: a field is wrong, or this server does not have it.
    """
    given = update.session
    if update.type.startswith("transcription_session"):
        given = _of_first_version(given)
    return read(Session, _merged(session.model_dump(), given), "session")


def shown_in_first_version(session: Session) -> dict[str, Any]:
    """Return a session with the fields of the API's first version."""
    given = session.audio.input
    [form] = [name for name, kind in FORMATS.items() if kind == given.format.type]
    return {
        "input_audio_format": form,
        "input_audio_transcription": given.transcription.model_dump(),
        "turn_detection": given.turn_detection and given.turn_detection.model_dump(),
        "input_audio_noise_reduction": None,
    }


def message_item(item_id: str) -> dict[str, Any]:
    """Return the message that a turn becomes, before its transcript."""
    content = [{"type": "input_audio", "transcript": None}]
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": content,
    }


def _of_first_version(given: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "input_audio_format": "format",
        "input_audio_transcription": "transcription",
        "input_audio_noise_reduction": "noise_reduction",
        "turn_detection": "turn_detection",
    }
    found = {names[name]: value for name, value in given.items() if name in names}
    if "format" in found:
        found["format"] = {"type": FORMATS.get(str(found["format"]), found["format"])}
    others = {name: value for name, value in given.items() if name not in names}
    return {**others, "audio": {"input": found}}


def _merged(old: Any, new: Any) -> Any:
    """Return an object with the fields of another in place of its own; one of another type replaces it."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    if new.get("type", old.get("type")) != old.get("type"):
        return new
    return old | {name: _merged(old.get(name), value) for name, value in new.items()}


def read(kind: type[Read], content: Any, name: str | None = None) -> Read:
    """Return what the schema makes of an object. Raises APIError, with the path of what is wrong."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        [first, *_] = error.errors()
        path = [name] if name else []
        # the name of a union's member stands in the path, too
        path += [str(part) for part in first["loc"] if part not in ENCODINGS]
        raise wrong_body([{**first, "loc": (".".join(path),)}]) from None
