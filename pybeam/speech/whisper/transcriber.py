"""`Transcriber`: recordings of any length in, transcripts out."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from pybeam.engine.failures import kept
from pybeam.engine.schedule import Fifo, Schedule
from pybeam.engine.stats import Stats
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from pybeam.speech.alignment import Aligner
from pybeam.speech.pcm import Encoding
from pybeam.speech.transcript import Segment, Transcript
from pybeam.speech.utterances import UtteranceFinder
from pybeam.speech.voice_activity import RATE, VoiceActivity
from pybeam.speech.whisper.assets import WhisperAssets
from pybeam.speech.whisper.languages import DetectedLanguage
from pybeam.speech.whisper.options import TranscriptionOptions
from pybeam.speech.whisper.recording import Progress, Recording
from pybeam.speech.whisper.recording_loop import RecordingLoop
from pybeam.speech.whisper.requests import RequestBuilder, beam_search
from pybeam.speech.whisper.window_jobs import Asking, WindowJob, WindowJobs
from pybeam.speech.words import WordFinder

# requests whose log-probabilities are kept at a time, beside the schedule's sources; more would wait
SPARE_LINES = 64

News = TypeVar("News")
Found = TypeVar("Found")


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
            `preprocessor_config.json`; or what `WhisperAssets` has read of it.
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
        path: str | os.PathLike[str] | WhisperAssets,
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
        assets = path if isinstance(path, WhisperAssets) else WhisperAssets.load(path)
        assets.tokens.check(model)
        self.sampling_rate = assets.extract.sampling_rate
        self.languages = tuple(assets.tokens.languages)
        schedule = Fifo(16) if schedule is None else schedule
        algorithm = beam_search() if algorithm is None else algorithm
        find_words = None
        if options.words:
            aligner = Aligner.load(model, assets.tokens.path.parent, backend=backend)
            marks = options.prepend_punctuations, options.append_punctuations
            find_words = WordFinder(aligner, assets.text, *marks)
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
        return _in_order(
            (one.index, one.id, found)
            for one in self.stream(recordings)
            if (found := one.transcript or one.error)
        )

    def stream(self, recordings: Iterable[Any]) -> Iterator[Progress]:
        """Yield news of the recordings: each window as it is ready, and each transcript, in any order.

        Args:
            recordings: as for `transcribe`. One that fails gives a `Progress` with an `error`; nothing is
                raised for it.

        Raises:
            TypeError: `recordings` is one recording and not a list of them.
        """
        _check_list(recordings)
        news: deque[Progress] = deque()
        given = enumerate(map(Recording.of, recordings))
        jobs = (self._loop.job(*one, news.append) for one in given)
        return self._run(jobs, news, self._decoder.schedule.n)

    def live(
        self,
        chunks: Iterable[Any],
        *,
        rate: int | None = None,
        encoding: Encoding = "s16le",
        activity: VoiceActivity | None = None,
    ) -> Iterator[Segment]:
        """Yield the segments of a stream of sound, such as that of a microphone, as they settle.

        The sound is cut into utterances where nobody speaks, and each is transcribed as a recording of its
        own that knows what was said before. Its segments settle when it has ended, and do not change
        afterwards. By default that is 0.66 seconds behind its last word, and 30.66 seconds behind its
        beginning at the latest, if nobody pauses; decoding comes on top. `pybeam.speech.UtteranceFinder` says
        how both follow from rules. No more than the sound of one utterance is held. Silence is not decoded.
        Other chunks of the same sound give the same segments.

        In a program with asyncio, take each segment in a thread: ``await asyncio.to_thread(next, segments)``.

        Args:
            chunks: bytes, or arrays [n] of floats from -1 to 1 or of 16-bit integers, of any sizes. They are
                taken as they are needed, and what they raise is raised here.
            rate: of the chunks, in Hz; None: `sampling_rate`. Another one needs the package av.
            encoding: of bytes; see `pybeam.speech.RawSound`.
            activity: says where somebody speaks; None: with the rules of `pybeam.speech.UtteranceFinder`.

        Returns:
            Segments, whose times count from the beginning of the stream. Its first segment sees the
            `initial_prompt`.

        Raises:
            ImportError: a package for voice activity is missing.
            TypeError, ValueError: an argument is wrong, the options have a `prefix`, or a chunk is no sound.
            Exception: what an utterance failed with.
        """
        if self.sampling_rate != RATE:
            raise ValueError(
                f"voice activity is found at {RATE} Hz, but the model's sound has {self.sampling_rate} Hz"
            )
        running, news = self._loop.running(), deque[Progress]()
        found = enumerate(UtteranceFinder(activity, rate, encoding).utterances(chunks))
        jobs = (self._loop.job(i, running.recording(one), news.append) for i, one in found)
        # an utterance is cut when the one before it is known, and nothing else is waited for meanwhile
        following = self._run(jobs, news, 1)
        return (segment for one in following for segment in running.add(one))

    def detect_languages(self, recordings: Iterable[Any]) -> Iterator[DetectedLanguage | None]:
        """Yield the language of each recording, in their order, and transcribe nothing.

        It is None for a model that knows English alone, and for a recording without sound.

        Args:
            recordings: as for `transcribe`. Languages that are given with them are not taken.

        Raises:
            TranscribeError: a recording failed. It is raised in that recording's place.
            TypeError: `recordings` is one recording and not a list of them.
        """
        _check_list(recordings)
        news: deque[tuple[int, Any, DetectedLanguage | Exception | None]] = deque()

        def job(index: int, recording: Recording) -> Asking[None]:
            try:
                found = yield from self._loop.detect(recording)
                news.append((index, recording.id, found))
            except Exception as error:
                news.append((index, recording.id, kept(error)))

        given = enumerate(map(Recording.of, recordings))
        most = self._decoder.schedule.n
        return _in_order(self._run(itertools.starmap(job, given), news, most))

    def release(self) -> None:
        """Free the memory that is kept between calls; see `Decoder.release`."""
        self._decoder.release()

    def _run(self, jobs: Iterator[WindowJob], news: deque[News], most: int) -> Iterator[News]:
        """Do so many jobs at a time, and yield what they append to `news`."""
        window_jobs = WindowJobs(jobs, self._builder, most)
        try:
            for result in self._decoder.stream(window_jobs):
                window_jobs.answer(result)
                while news:
                    yield news.popleft()
        finally:
            window_jobs.close()
        yield from news
        if window_jobs.error is not None:
            raise window_jobs.error


def _in_order(ends: Iterable[tuple[int, Any, Found | Exception]]) -> Iterator[Found]:
    """Yield what became of recordings in their order. Raises TranscribeError in the place of one that failed.

    Args:
        ends: position and id of each recording, and what became of it.
    """
    done: dict[int, tuple[Any, Found | Exception]] = {}
    num_yielded = 0
    for index, name, found in ends:
        done[index] = name, found
        while num_yielded in done:
            name, found = done.pop(num_yielded)
            if isinstance(found, Exception):
                raise TranscribeError(num_yielded, name, str(found)) from found
            num_yielded += 1
            yield found


def _check_list(recordings: Any) -> None:
    if isinstance(recordings, Tensor | np.ndarray | Recording | str):
        raise TypeError(
            f"`recordings` must be a list of recordings, but is one {type(recordings).__name__}; put it into "
            "a list"
        )
