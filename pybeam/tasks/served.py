"""`Served`: recordings of any length beside those of other callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from pybeam.decoder import OnError
from pybeam.engine.schedule import Schedule
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from pybeam.serving.together import in_order
from pybeam.serving.transcripts import ServedTranscripts
from pybeam.speech import Segment, Transcript, Utterance, UtteranceFinder
from pybeam.speech.whisper import Progress, TranscribeError, TranscriptionOptions
from pybeam.tasks.loaded import raised, start_service
from pybeam.tasks.recordings import Sounds


class Served:
    """A service for recordings with the same options.

    Args:
        model, path, search, schedule: see `pybeam.Transcriber`.
        options: how recordings are transcribed.
        vad: whether parts in which nobody speaks are left out.
    """

    def __init__(
        self,
        model: Model,
        path: Path,
        search: Algorithm,
        schedule: Schedule,
        options: TranscriptionOptions,
        vad: bool,
    ) -> None:
        self._transcripts = ServedTranscripts(
            "default", model, str(path), search, schedule, options=options
        )
        self._loop = self._transcripts.recording_loop(options)
        self._sounds = Sounds(self._transcripts.sampling_rate, vad)
        self._decode = start_service(self._transcripts.decoder, self).decode

    async def _news(self, given: Any) -> AsyncIterator[Progress]:
        recording = await asyncio.to_thread(self._sounds, given)
        async for news in self._transcripts.transcribe(self._loop, recording, self._decode):
            yield news

    async def segments(self, given: Any) -> AsyncIterator[Segment]:
        """Yield the segments of a recording, each as soon as it is settled. Raises TranscribeError."""
        try:
            async for news in self._news(given):
                for segment in news.segments:
                    yield segment
        except Exception as error:
            raise TranscribeError(0, None, str(error)) from error

    async def live(
        self, chunks: Iterable[Any] | AsyncIterable[Any], finder: UtteranceFinder
    ) -> AsyncIterator[Segment]:
        """Yield the segments of a stream of sound, each as soon as it is settled."""
        running = self._loop.running()
        async for utterance in _utterances(chunks, finder):
            recording = running.recording(utterance)
            async for news in self._transcripts.transcribe(self._loop, recording, self._decode):
                for segment in running.add(news):
                    yield segment

    async def transcript(self, place: int, given: Any) -> Transcript | TranscribeError:
        """Return the transcript of a recording, or the error that it failed with."""
        try:
            last = [news.transcript async for news in self._news(given)][-1]
        except Exception as error:
            failure = TranscribeError(place, None, str(error))
            failure.__cause__ = error
            return failure
        assert last is not None, "the last news has it"
        return last

    async def transcripts(
        self, recordings: Any, on_error: OnError, window: int
    ) -> AsyncIterator[Transcript | Exception]:
        """Yield the transcripts of recordings in their order, of which `window` are open at a time."""
        async for one in in_order(recordings, self.transcript, window):
            yield raised(one, on_error)


async def _utterances(
    chunks: Iterable[Any] | AsyncIterable[Any], finder: UtteranceFinder
) -> AsyncIterator[Utterance]:
    async for chunk in _each(chunks):
        # whoever waits for other sound is not held up meanwhile
        for one in await asyncio.to_thread(list, finder.more(chunk)):
            if isinstance(one, Utterance):
                yield one
    for one in await asyncio.to_thread(list, finder.end()):
        if isinstance(one, Utterance):
            yield one


async def _each(given: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(given, AsyncIterable):
        async for one in given:
            yield one
        return
    coming = iter(given)
    while (one := await asyncio.to_thread(next, coming, None)) is not None:
        yield one
