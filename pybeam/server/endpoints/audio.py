"""OpenAI's transcriptions, and translations into English of what is said.

See https://platform.openai.com/docs/api-reference/audio.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Form, UploadFile
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import AfterValidator, Field

from pybeam.request import Hypothesis, Request
from pybeam.server.calls import Calls, TheCalls
from pybeam.server.errors import RETRY_SECONDS, APIError, from_service, refused
from pybeam.server.log_probs import Scored, token_log_probs
from pybeam.server.models import ServedModel
from pybeam.server.schemas import Body, Serving
from pybeam.server.sse import Event, event_of, streamed, unless_gone
from pybeam.serving import Certain, ServedResult
from pybeam.serving.transcripts import ServedTranscripts
from pybeam.speech import (
    Segment,
    SoundFile,
    Stretch,
    Transcript,
    VoiceActivity,
    format_transcript,
)
from pybeam.speech.whisper import Progress, Recording, TranscriptionOptions
from pybeam.speech.whisper.windows import compression_ratio
from pybeam.text.deltas import TextDeltas

router = APIRouter(prefix="/v1/audio", tags=["OpenAI"])
logger = logging.getLogger(__name__)

MEDIA_TYPES = {"srt": "application/x-subrip", "vtt": "text/vtt"}


class TranslationForm(Body):
    """A recording, in any format that `pybeam.speech.SoundFile` reads, and how to write it in English."""

    file: UploadFile
    model: str | None = None
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    prompt: str | None = None


def _strategy(given: str) -> str:
    """Check a chunking strategy, which is JSON where it has options."""
    try:
        found = given if given == "auto" else json.loads(given)["type"]
    except (ValueError, TypeError, KeyError, RecursionError):
        found = None
    if found not in ("auto", "server_vad"):
        raise ValueError('must be "auto" or a JSON object with the `type` "server_vad"')
    if given != "auto" and len(json.loads(given)) > 1:
        raise ValueError('must have no options but the `type`; "auto" is the same')
    return given


class TranscriptionForm(TranslationForm):
    """A recording, in any format that `pybeam.speech.SoundFile` reads, and how to write it down."""

    language: str | None = None
    task: Literal["transcribe", "translate"] | None = None
    timestamp_granularities: list[Literal["segment", "word"]] = Field(
        default=[], alias="timestamp_granularities[]"
    )
    include: list[Literal["logprobs"]] = Field(default=[], alias="include[]")
    chunking_strategy: Annotated[str, AfterValidator(_strategy)] | None = None
    stream: bool = False

    @property
    def wants_words(self) -> bool:
        """Whether the answer has words."""
        return "word" in self.timestamp_granularities

    def options(self) -> TranscriptionOptions:
        """Return what a Whisper model is asked for; without a temperature, several are tried."""
        asked: dict[str, Any] = {}
        if self.temperature:
            asked["temperatures"] = (self.temperature,)
        return TranscriptionOptions(
            language=self.language or None,
            task=self.task,
            words=self.wants_words,
            windows="sequential" if self.chunking_strategy is None else "batched",
            initial_prompt=self.prompt or None,
            **asked,
        )


@router.post("/transcriptions")
async def transcriptions(
    http: HTTPRequest, form: Annotated[TranscriptionForm, Form()], calls: TheCalls
) -> Response:
    """Write down what is said in a recording.

    With Whisper models recordings may have any length up to the server's limit, and segments and words have
    times. With a `chunking_strategy`, they are cut where nobody speaks, and no window sees the text of the
    one before it. Other models give no times: srt, vtt and verbose_json then have one segment, the whole
    recording. With `include[]=logprobs` the answer has the log-probability of each token of the text.
    """
    return await _transcribed(http, form, calls)


@router.post("/translations")
async def audio_translations(
    http: HTTPRequest, form: Annotated[TranslationForm, Form()], calls: TheCalls
) -> Response:
    """Write down in English what is said in a recording in another language."""
    asked = {name: getattr(form, name) for name in form.model_fields_set}
    return await _transcribed(http, TranscriptionForm(**asked, task="translate"), calls)


async def _transcribed(http: HTTPRequest, form: TranscriptionForm, calls: Calls) -> Response:
    model = calls.pick(http, known_model(form.model), takes_sound=True)
    if form.timestamp_granularities and form.response_format != "verbose_json":
        field = "timestamp_granularities"
        raise APIError(400, f"`{field}` needs response_format=verbose_json", field)
    if form.include and form.response_format != "json":
        raise APIError(400, "`include` needs response_format=json", "include")
    if model.transcripts is None:
        return await _one_source(http, form, calls, model)
    log_probs = SegmentLogProbs(model, model.transcripts) if form.include else None
    http.state.log_fields = {"model": model.name, "sources": 1}
    news = _news(http, form, calls, model, model.transcripts)
    if form.stream:
        return await streamed(http, news, _NewsWriter(log_probs), lambda: None)
    try:
        transcript = await unless_gone(http, _last(news))
    except Exception as error:
        raise from_service(error) from error
    if log_probs is not None:
        return JSONResponse({"text": transcript.text, "logprobs": log_probs(transcript.segments)})
    return _answer(form, transcript)


def known_model(name: str | None) -> str | None:
    """Return the name of a model that a request asks for; None: any."""
    # OpenAI's clients must name a model, and many can name OpenAI's alone
    return None if name == "whisper-1" else name


Read = TypeVar("Read")


async def _read(read: Callable[..., Read], *args: Any) -> Read:
    """Read a recording, in a thread.

    Raises:
        APIError: 422, the recording cannot be read; 503, this server cannot read any.
    """
    try:
        return await asyncio.to_thread(read, *args)
    except OSError as error:
        logger.error("a recording was not read: %s", error)
        problem = "no recordings can be read now; try again later"
        raise APIError(503, problem, retry_after=RETRY_SECONDS) from error
    except (ImportError, ValueError) as error:
        raise refused(error) from error


async def _news(
    http: HTTPRequest,
    form: TranscriptionForm,
    calls: Calls,
    model: ServedModel,
    transcripts: ServedTranscripts,
) -> AsyncGenerator[Progress, None]:
    """Yield the news of a recording, while its windows are transcribed."""
    with calls.recordings.one(http):
        try:
            recording_loop = transcripts.recording_loop(form.options())
        except ValueError as error:
            raise refused(error) from error
        late = "the recording was not transcribed"
        decode = calls.parts(http, model, Serving(), late, transcripts.decoder)
        with calls.sound(http, form.file.file, transcripts.sampling_rate) as sound:
            stretches = await _read(_stretches, sound) if form.chunking_strategy else None
            features = await _read(transcripts.read, sound)
            recording = Recording(features, stretches)
            async for one in transcripts.transcribe(recording_loop, recording, decode):
                yield one


def _stretches(sound: SoundFile) -> Sequence[Stretch]:
    return VoiceActivity()(sound)


async def _last(news: AsyncGenerator[Progress, None]) -> Transcript:
    transcript = None
    try:
        async for one in news:
            transcript = one.transcript
    finally:
        await news.aclose()
    assert transcript is not None, "the last news has it"
    return transcript


async def _one_source(
    http: HTTPRequest, form: TranscriptionForm, calls: Calls, model: ServedModel
) -> Response:
    """Transcribe with a model that has no times, and takes a recording as one source."""
    for field, is_asked in (
        ("temperature", form.temperature),
        ("prompt", form.prompt),
        ("timestamp_granularities", form.wants_words),
        ("chunking_strategy", form.chunking_strategy),
    ):
        if is_asked:
            raise APIError(
                400, f"`{field}` is for Whisper models, but {model.name!r} is another", field
            )
    assert model.extractor is not None
    rate = model.extractor.sampling_rate
    with calls.recordings.one(http), calls.sound(http, form.file.file, rate) as sound:
        samples = await _read(sound.read)
        try:
            transcription = await asyncio.to_thread(model.transcription, form.language, form.task)
            features = await asyncio.to_thread(model.extractor, samples)
        except (ImportError, ValueError) as error:
            raise refused(error) from error
        seconds = len(samples) / rate
        tokenizer = model.plain_tokenizer
        prefix = [*(tokenizer.prefix if tokenizer else ()), *transcription.prefix]
        request = Request(features, prefix or None)
        # a transcript that is cut would be taken for a whole one
        serving = Serving(model=model.name, on_deadline="raise")
        if form.stream:
            writer = _Writer(model, has_log_probs=bool(form.include))
            return await calls.stream(http, model, request, serving, writer)
        [served] = await calls.decode(http, model, [request], serving)
    text, best = model.best_text(served), next(iter(served.result.hypotheses), None)
    if form.include:
        log_probs = token_log_probs(model, (), Scored.of(best))
        return JSONResponse({"text": text, "logprobs": log_probs})
    return _answer(form, _as_transcript(form, seconds, text, best))


def _as_transcript(
    form: TranscriptionForm, seconds: float, text: str, best: Hypothesis | None
) -> Transcript:
    segments = []
    if best is not None:
        scores = best.log_probs or [best.score]
        average = sum(scores) / len(scores)
        ratio, tokens = compression_ratio(text), tuple(best.tokens)
        segments.append(Segment(0.0, seconds, text, tokens, average, None, 0.0, ratio))
    return Transcript(form.language, None, seconds, tuple(segments))


def _answer(form: TranscriptionForm, transcript: Transcript) -> Response:
    match form.response_format:
        case "text":
            return PlainTextResponse(transcript.text + "\n")
        case "srt" | "vtt" as name:
            content = format_transcript(transcript, name)
            return PlainTextResponse(content, media_type=MEDIA_TYPES[name])
        case "verbose_json":
            return JSONResponse(_verbose(form, transcript))
    return JSONResponse({"text": transcript.text})


def _verbose(form: TranscriptionForm, transcript: Transcript) -> dict[str, Any]:
    segments = json.loads(format_transcript(transcript, "json"))["segments"]
    words = [word for segment in segments for word in segment.pop("words", [])]
    found = {
        "task": form.task or "transcribe",
        "language": transcript.language or "",
        "duration": transcript.duration,
        "text": transcript.text,
    }
    if form.wants_words:
        found["words"] = words
    if not form.wants_words or "segment" in form.timestamp_granularities:
        # in frames of 10 ms, as OpenAI's
        found["segments"] = [{"seek": round(100 * one["start"]), **one} for one in segments]
    return found


def _delta_event(text: str, log_probs: list[dict[str, Any]] | None = None) -> str:
    return _event("delta", {"delta": text}, log_probs)


def _done_event(text: str, log_probs: list[dict[str, Any]] | None = None) -> str:
    return _event("done", {"text": text}, log_probs)


def _event(kind: str, data: dict[str, Any], log_probs: list[dict[str, Any]] | None) -> str:
    more = {} if log_probs is None else {"logprobs": log_probs}
    return event_of({"type": f"transcript.text.{kind}", **data, **more})


class SegmentLogProbs:
    """Write the log-probabilities of the tokens of segments."""

    def __init__(self, model: ServedModel, transcripts: ServedTranscripts) -> None:
        self._model, self._transcripts = model, transcripts

    def __call__(self, segments: Sequence[Segment]) -> list[dict[str, Any]]:
        scored = Scored([], *self._transcripts.text_tokens(segments))
        return token_log_probs(self._model, (), scored)


class _NewsWriter:
    """Write the text of each window as it is ready; `log_probs` write those of its tokens, too."""

    def __init__(self, log_probs: SegmentLogProbs | None) -> None:
        self._log_probs, self._has_begun = log_probs, False

    def __call__(self, news: Progress) -> Iterator[str]:
        text = "".join(segment.text for segment in news.segments)
        if not self._has_begun:
            text = text.lstrip()
        if text:
            self._has_begun = True
            yield _delta_event(text, self._of(news.segments))
        if news.transcript is not None:
            yield _done_event(news.transcript.text, self._of(news.transcript.segments))

    def _of(self, segments: Sequence[Segment]) -> list[dict[str, Any]] | None:
        return None if self._log_probs is None else self._log_probs(segments)


class _Writer:
    def __init__(self, model: ServedModel, *, has_log_probs: bool) -> None:
        self._model, self._deltas = model, TextDeltas(model.text)
        self._has_log_probs = has_log_probs

    def __call__(self, event: Event) -> Iterator[str]:
        if isinstance(event, Certain):
            if delta := self._deltas.more(event.tokens):
                yield _delta_event(delta)
        elif isinstance(event, ServedResult):
            text = self._model.best_text(event)
            if delta := self._deltas.rest(text):
                yield _delta_event(delta)
            # how probable a token is, is known when it has been chosen
            log_probs = None
            if self._has_log_probs:
                best = next(iter(event.result.hypotheses), None)
                log_probs = token_log_probs(self._model, (), Scored.of(best))
            yield _done_event(text, log_probs)
