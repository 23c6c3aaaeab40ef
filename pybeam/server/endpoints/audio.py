"""OpenAI's transcriptions: https://platform.openai.com/docs/api-reference/audio/createTranscription."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Depends, Form, UploadFile
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from torch import Tensor

from pybeam.request import Request
from pybeam.server.answers import best_text
from pybeam.server.calls import TheCalls, authorised
from pybeam.server.errors import refused
from pybeam.server.models import ServedModel
from pybeam.server.schemas import Body, Serving
from pybeam.server.sse import Event, event_of
from pybeam.serving import Certain, ServedResult
from pybeam.speech import read_wav
from pybeam.text.deltas import TextDeltas

router = APIRouter(prefix="/v1/audio", tags=["OpenAI"], dependencies=[Depends(authorised)])


class TranscriptionForm(Body):
    """A recording, 16-bit PCM with one channel at the model's rate, and how to write it down."""

    file: UploadFile
    model: str | None = None
    language: str | None = None
    task: Literal["transcribe", "translate"] | None = None
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: Literal["0", "0.0"] | None = None
    prompt: Literal[""] | None = None
    stream: bool = False


@router.post("/transcriptions")
async def transcriptions(
    http: HTTPRequest, form: Annotated[TranscriptionForm, Form()], calls: TheCalls
) -> Response:
    """Write down what is said in a recording.

    Models here give no timestamps, so srt, vtt and verbose_json have one segment, the whole recording.
    """
    model = calls.models.pick(_known(form.model), takes_sound=True)
    try:
        transcription = await asyncio.to_thread(model.transcription, form.language, form.task)
        features, seconds = await asyncio.to_thread(_features, model, form.file.file)
    except (ImportError, ValueError) as error:
        raise refused(error) from error
    tokenizer = model.plain_tokenizer
    prefix = [*(tokenizer.prefix if tokenizer else ()), *transcription.prefix]
    request = Request(features, prefix or None)
    serving = Serving(model=model.name)
    if form.stream:
        return await calls.stream(http, model, request, serving, _Writer(model))
    [served] = await calls.decode(http, model, [request], serving)
    return _answer(form, seconds, best_text(model, served), served)


def _known(name: str | None) -> str | None:
    # OpenAI's clients must name a model, and many can name OpenAI's alone
    return None if name == "whisper-1" else name


def _features(model: ServedModel, file: BinaryIO) -> tuple[Tensor, float]:
    """Return features [E, F] and the length in seconds."""
    assert model.extractor is not None
    rate = model.extractor.sampling_rate
    samples = read_wav(file, rate)
    return model.extractor(samples), len(samples) / rate


def _answer(form: TranscriptionForm, seconds: float, text: str, served: ServedResult) -> Response:
    match form.response_format:
        case "text":
            return PlainTextResponse(text + "\n")
        case "srt":
            times = f"{_time(0, ',')} --> {_time(seconds, ',')}"
            return PlainTextResponse(f"1\n{times}\n{text}\n\n", media_type="application/x-subrip")
        case "vtt":
            times = f"{_time(0, '.')} --> {_time(seconds, '.')}"
            return PlainTextResponse(f"WEBVTT\n\n{times}\n{text}\n\n", media_type="text/vtt")
        case "verbose_json":
            return JSONResponse(_verbose(form, seconds, text, served))
    return JSONResponse({"text": text})


def _verbose(
    form: TranscriptionForm, seconds: float, text: str, served: ServedResult
) -> dict[str, Any]:
    segments = []
    for best in served.result.hypotheses[:1]:
        segment = {"id": 0, "seek": 0, "start": 0.0, "end": seconds, "text": text}
        segment |= {"tokens": best.tokens, "temperature": 0.0, "avg_logprob": best.score}
        if best.log_probs:
            segment["avg_logprob"] = sum(best.log_probs) / len(best.log_probs)
        segments.append(segment)
    return {
        "task": form.task or "transcribe",
        "language": form.language or "",
        "duration": seconds,
        "text": text,
        "segments": segments,
    }


def _time(seconds: float, point: str) -> str:
    """Write hours:minutes:seconds and milliseconds."""
    milliseconds = round(1000 * seconds)
    whole, rest = divmod(milliseconds, 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{point}{rest:03d}"


class _Writer:
    def __init__(self, model: ServedModel) -> None:
        self._model, self._deltas = model, TextDeltas(model.text)

    def __call__(self, event: Event) -> Iterator[str]:
        if isinstance(event, Certain):
            if delta := self._deltas.more(event.tokens):
                yield self._delta(delta)
        elif isinstance(event, ServedResult):
            text = best_text(self._model, event)
            if delta := self._deltas.rest(text):
                yield self._delta(delta)
            yield event_of({"type": "transcript.text.done", "text": text})

    def _delta(self, text: str) -> str:
        return event_of({"type": "transcript.text.delta", "delta": text})
