"""Recordings of any length in a service: the windows of all requests share the batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import cached_property, partial
from typing import Any

from pybeam.backends.inference import InferenceMode
from pybeam.engine.schedule import Schedule
from pybeam.models.base import Model
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.serving.answers import ServedResult
from pybeam.serving.errors import QueueFull
from pybeam.serving.together import in_order, together
from pybeam.speech.alignment import Aligner
from pybeam.speech.sound import SoundFile
from pybeam.speech.transcript import Segment
from pybeam.speech.whisper import Progress, Recording, TranscriptionOptions
from pybeam.speech.whisper.assets import WhisperAssets
from pybeam.speech.whisper.recording import LongFeatures
from pybeam.speech.whisper.recording_loop import RecordingLoop
from pybeam.speech.whisper.requests import Answer, Question, RequestBuilder
from pybeam.speech.whisper.window_jobs import WindowJob
from pybeam.speech.words import WordFinder

# windows whose log-probabilities are kept at a time; many more than are ever asked for
NUM_LINES = 1024
# A step that was running when its request was cancelled may still write log-probabilities. No step takes
# longer: after 60 seconds the service calls the step stalled.
CANCELLED_SECONDS = 90.0

# decodes a request in the service
Decode = Callable[[Request], Awaitable[ServedResult]]


class ServedTranscripts:
    """Transcribe recordings with a Whisper model, whose decoder a service runs.

    Args:
        name: of the decoder in the service.
        model: a Whisper model.
        directory: its files.
        search: the search at temperature 0.0; see `pybeam.Transcriber`.
        schedule, backend: those of `pybeam.Decoder`.
        options: what the search bans; None: what `TranscriptionOptions()` does.

    Attributes:
        decoder: for the service, which alone uses it.
        sampling_rate: of samples, in Hz.

    Raises:
        ValueError: a file is missing or wrong.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        directory: str,
        search: Algorithm,
        schedule: Schedule | None = None,
        backend: str = "auto",
        *,
        options: TranscriptionOptions | None = None,
    ) -> None:
        self.name, self._model, self._directory, self._backend = name, model, directory, backend
        self._assets = WhisperAssets.load(directory)
        self.sampling_rate = self._assets.extract.sampling_rate
        # words are aligned in the memory of one session
        self._lock = threading.Lock()
        options = TranscriptionOptions() if options is None else options
        most_given = len(self.recording_loop(options).prefix)
        self._builder = RequestBuilder(model, self._assets, options, search, NUM_LINES, most_given)
        self.decoder = self._builder.decoder(schedule, backend)

    def recording_loop(self, options: TranscriptionOptions) -> RecordingLoop:
        """Return who transcribes with these options, which ban the same.

        Raises:
            ValueError: the model does not know the language or the task, or has no prompts.
        """
        return RecordingLoop(
            self._model, self._assets, options, self._words if options.words else None
        )

    def read(self, sound: SoundFile) -> LongFeatures:
        """Read a recording once, and return what its windows are cut from.

        Raises:
            ImportError, OSError, ValueError: it cannot be read.
        """
        return LongFeatures(self._assets.extract, sound)

    def text_tokens(self, segments: Sequence[Segment]) -> tuple[list[int], list[float]]:
        """Return the tokens of segments that have text, and their log-probabilities."""
        found = [
            (token, log_prob)
            for one in segments
            for token, log_prob in zip(one.tokens, one.log_probs, strict=True)
            # timestamps and control tokens have none
            if self._assets.text([token])
        ]
        return [token for token, _ in found], [log_prob for _, log_prob in found]

    async def transcribe(
        self, recording_loop: RecordingLoop, recording: Recording, decode: Decode
    ) -> AsyncGenerator[Progress, None]:
        """Yield the news of a recording; the last one has its transcript.

        Raises:
            Exception: what `decode` raises, or what is wrong with the recording.
        """
        news: asyncio.Queue[Progress | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(one: Progress) -> None:
            loop.call_soon_threadsafe(news.put_nowait, one)

        job = recording_loop.job(0, recording, tell)
        work = asyncio.ensure_future(self._done(job, decode, is_first=True))
        # behind all news
        work.add_done_callback(lambda _: news.put_nowait(None))
        try:
            while (one := await news.get()) is not None:
                if one.error is not None:
                    raise one.error
                yield one
            await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _done(self, job: WindowJob, decode: Decode, *, is_first: bool) -> Any:
        """Do a job, which asks questions or has others done, and return what it returns."""
        answers: list[Any] | None = None
        while True:
            asked, returned = await asyncio.to_thread(_go_on, job, answers)
            if asked is None:
                return returned
            if isinstance(asked[0], Question):
                answers = await together([self._answer(one, decode, is_first) for one in asked])
            else:
                # each may hold features, so few are begun at a time
                most = self.decoder.schedule.n
                answers = [one async for one in in_order(asked, partial(self._part, decode), most)]
            is_first = False

    async def _part(self, decode: Decode, place: int, job: WindowJob) -> Any:
        return await self._done(job, decode, is_first=place == 0)

    async def _answer(self, question: Question, decode: Decode, is_first: bool) -> Answer:
        request, line = self._builder.request(question)
        try:
            while True:
                try:
                    served = await decode(request)
                    break
                except QueueFull as full:
                    # what has begun is not given up because others came meanwhile
                    if is_first:
                        raise
                    await asyncio.sleep(full.retry_after)
        except BaseException:
            loop = asyncio.get_running_loop()
            loop.call_later(CANCELLED_SECONDS, self._builder.token_log_probs.read, line)
            raise
        return self._builder.answer(question, line, served.result)

    @cached_property
    def _finder(self) -> WordFinder:
        aligner = Aligner.load(self._model, self._directory, backend=self._backend)
        return WordFinder(aligner, self._assets.text)

    def _words(self, *args: Any, **options: Any) -> list[Segment]:
        with self._lock:
            return self._finder(*args, **options)


def _go_on(job: WindowJob, answers: list[Any] | None) -> tuple[list[Any] | None, Any]:
    """Let a job go on until it asks again. Returns what it asks; or None, and what it returns."""
    with InferenceMode(True):
        try:
            # the first value that a generator is sent is None
            return job.send(answers), None  # type: ignore[arg-type]
        except StopIteration as stop:
            return None, stop.value
