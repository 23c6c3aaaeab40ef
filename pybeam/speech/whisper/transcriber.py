"""`Transcriber`: recordings of any length in, transcripts out."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from pybeam.engine.schedule import Fifo, Schedule
from pybeam.engine.stats import Stats
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from pybeam.speech.alignment import Aligner
from pybeam.speech.transcript import Transcript
from pybeam.speech.whisper.assets import WhisperAssets
from pybeam.speech.whisper.options import TranscriptionOptions
from pybeam.speech.whisper.recording import Progress, Recording
from pybeam.speech.whisper.recording_loop import RecordingLoop
from pybeam.speech.whisper.requests import RequestBuilder, beam_search
from pybeam.speech.whisper.window_jobs import WindowJob, WindowJobs
from pybeam.speech.words import WordFinder

# requests whose log-probabilities are kept at a time, beside the schedule's sources; more would wait
SPARE_LINES = 64


class TranscribeError(RuntimeError):
    """Raised when a recording failed; its cause is the error.

    Attributes:
        index: position of the recording among those handed over.
        id: the recording's own id.
    """

    def __init__(self, index: int, id: Any, problem: str) -> None:
        super().__init__(f"recording {index} failed: {problem}")
        self.index, self.id, self._problem = index, id, problem

    def __reduce__(self) -> tuple[type[TranscribeError], tuple[int, Any, str]]:
        return TranscribeError, (self.index, self.id, self._problem)


class Transcriber:
    """Transcribe recordings of any length with a Whisper model, window by window.

    Windows of all recordings share one stream of the decoder: the next window of a recording is submitted
    when the one before it is known, beside windows of other recordings. Results are those of each recording
    alone, on a CPU to the last bit.

    Args:
        model: from `pybeam.load_model`. Settings that it has lost by `model.without` (`suppress_tokens`,
            `begin_suppress_tokens`) do not hold.
        path: the model's directory, with `config.json`, `generation_config.json`, `tokenizer.json` and
            `preprocessor_config.json`.
        options: how recordings are transcribed; None: `TranscriptionOptions()`.
        algorithm: the search at temperature 0.0. Its processors come before Whisper's rules, stage by stage.
            A prompt counts in no length. None: `pybeam.speech.whisper.beam_search`, as faster-whisper
            searches.
        schedule: see `pybeam.Decoder`; default ``Fifo(16)``. Its `n` windows are decoded at a time, and at
            most `n` recordings are open. It changes no result.
        backend, memory_limit: those of `pybeam.Decoder`. They change no result.

    Attributes:
        sampling_rate: of samples, in Hz.
        languages: codes of the languages that the model knows, such as "en"; empty: English alone.

    Raises:
        ValueError, TypeError: the model is no Whisper model, a file is missing or wrong, or options do not
            fit the model.
    """

    def __init__(
        self,
        model: Model,
        path: str | os.PathLike[str],
        options: TranscriptionOptions | None = None,
        *,
        algorithm: Algorithm | None = None,
        schedule: Schedule | None = None,
        backend: str = "auto",
        memory_limit: int | None = None,
    ) -> None:
        options = TranscriptionOptions() if options is None else options
        if not isinstance(options, TranscriptionOptions):
            raise TypeError(f"`options` must be TranscriptionOptions, but is {options!r}")
        assets = WhisperAssets.load(path)
        assets.tokens.check(model)
        self.sampling_rate = assets.extract.sampling_rate
        self.languages = tuple(assets.tokens.languages)
        schedule = Fifo(16) if schedule is None else schedule
        algorithm = beam_search() if algorithm is None else algorithm
        find_words = None
        if options.words:
            find_words = WordFinder(Aligner.load(model, path, backend=backend), assets.text)
        self._loop = RecordingLoop(model, assets, options, find_words)
        most_given = len(self._loop.prefix)
        self._builder = RequestBuilder(
            model, assets, options, algorithm, schedule.n + SPARE_LINES, most_given
        )
        self._decoder = self._builder.decoder(schedule, backend, memory_limit)

    @property
    def stats(self) -> Stats:
        """The numbers of the latest call, see `pybeam.engine.stats.Stats`."""
        return self._decoder.stats

    def transcribe(self, recordings: Iterable[Any]) -> Iterator[Transcript]:
        """Yield the transcripts in the order of the recordings, each once it and all before it are known.

        Args:
            recordings: samples [n] float32, features [E, F], or `Recording` objects. They are read as they
                are needed.

        Raises:
            TranscribeError: a recording failed. It is raised in that recording's place.
            TypeError: `recordings` is one recording and not a list of them.
        """
        done: dict[int, Progress] = {}
        num_yielded = 0
        for news in self.stream(recordings):
            if news.transcript is None and news.error is None:
                continue
            done[news.index] = news
            while num_yielded in done:
                ready = done.pop(num_yielded)
                num_yielded += 1
                if ready.transcript is None:
                    raise TranscribeError(ready.index, ready.id, str(ready.error)) from ready.error
                yield ready.transcript

    def stream(self, recordings: Iterable[Any]) -> Iterator[Progress]:
        """Yield news of the recordings: each window as it is ready, and each transcript, in any order.

        Args:
            recordings: as for `transcribe`. One that fails gives a `Progress` with an `error`; nothing is
                raised for it.

        Raises:
            TypeError: `recordings` is one recording and not a list of them.
        """
        if isinstance(recordings, Tensor | np.ndarray | Recording | str):
            raise TypeError(
                f"`recordings` must be a list of recordings, but is one {type(recordings).__name__}; put it "
                "into a list"
            )
        return self._stream(recordings)

    def release(self) -> None:
        """Free the memory that is kept between calls; see `Decoder.release`."""
        self._decoder.release()

    def _stream(self, recordings: Iterable[Any]) -> Iterator[Progress]:
        news: deque[Progress] = deque()
        most = self._decoder.schedule.n
        jobs = WindowJobs(self._jobs(recordings, news), self._builder, most)
        try:
            for result in self._decoder.stream(jobs):
                jobs.answer(result)
                while news:
                    yield news.popleft()
        finally:
            jobs.close()
        yield from news
        if jobs.error is not None:
            raise jobs.error

    def _jobs(self, recordings: Iterable[Any], news: deque[Progress]) -> Iterator[WindowJob]:
        for index, given in enumerate(recordings):
            yield self._loop.job(index, Recording.of(given), news.append)
