"""`WhisperRecognizer`: recordings of any length in, segments and transcripts out."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from functools import lru_cache
from typing import Any, Self

from pybeam.decoder import OnError
from pybeam.engine.schedule import Fifo, Schedule
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from pybeam.speech import Segment, Transcript, UtteranceFinder, VoiceActivity
from pybeam.speech.pcm import Encoding
from pybeam.speech.whisper import (
    Progress,
    TranscribeError,
    Transcriber,
    TranscriptionOptions,
    beam_search,
)
from pybeam.tasks.loaded import Folder, Loaded, check_on_error, raised, several
from pybeam.tasks.recordings import Sounds, check_one, is_one
from pybeam.tasks.served import Served

# windows of all recordings that are decoded at a time, as many as a `pybeam.Transcriber` decodes
WINDOWS_AT_ONCE = 16
# transcribers that are kept, each with the options that it was asked for
KEPT = 8


class Segments(Iterator[Segment]):
    """The segments of one recording, each as soon as it is settled.

    The recording is transcribed while somebody asks for them. `str` gives its whole text.

    Args:
        news: of the recording.
    """

    def __init__(self, news: Iterator[Progress]) -> None:
        self._news = news
        self._settled: deque[Segment] = deque()
        self._transcript: Transcript | None = None
        self._failure: TranscribeError | None = None

    def __next__(self) -> Segment:
        while not self._settled:
            self._take(next(self._news))
        return self._settled.popleft()

    def __str__(self) -> str:
        return self.transcript.text

    @property
    def transcript(self) -> Transcript:
        """All that is heard, whatever has been asked for before: text, segments and language.

        Raises:
            pybeam.TranscribeError: the recording failed.
        """
        for news in self._news:
            self._take(news)
        if self._failure is not None:
            raise self._failure
        assert self._transcript is not None, "the last news has it"
        return self._transcript

    def _take(self, news: Progress) -> None:
        if news.error is not None:
            self._failure = _failure(news)
            raise self._failure
        self._settled += news.segments
        self._transcript = news.transcript


class WhisperRecognizer(Loaded):
    """A Whisper model, which transcribes recordings of any length, with times and languages.

    `pybeam.load` makes one. It is a `pybeam.Transcriber` for each set of options.

    Args:
        folder: where the model comes from.
        model, schedule: those of the decoder.
        search: see `pybeam.Transcriber`.

    Attributes:
        path: the model's folder.
        model, decoder: what decodes; see `pybeam.load_model` and `pybeam.Decoder`.
        languages: codes of the languages that the model knows, such as "en"; empty: English alone.
        sampling_rate: of samples, in Hz.
    """

    item = "recording"

    def __init__(
        self, folder: Folder, model: Model, search: Algorithm | None, schedule: Schedule | None
    ) -> None:
        self._search = beam_search() if search is None else search
        super().__init__(folder, model, self._search, schedule or Fifo(WINDOWS_AT_ONCE))
        self._keep()
        plain = self._transcriber(threading.get_ident(), TranscriptionOptions())
        self.languages, self.sampling_rate = plain.languages, plain.sampling_rate

    @property
    def _languages(self) -> tuple[str, ...]:
        return self.languages

    def with_search(self, search: Algorithm) -> Self:
        """Return the same model with another search; see `Loaded.with_search`."""
        twin = super().with_search(search)
        twin._search = search
        twin._keep()
        return twin

    def transcribe(
        self,
        recordings: Any,
        *,
        vad: bool = False,
        search: Algorithm | None = None,
        on_error: OnError = "raise",
        **options: Any,
    ) -> Segments | list[Any]:
        """Transcribe a recording, or several.

        A recording gives `Segments`: its segments one by one, each as soon as it is settled. Several give a
        list of their `pybeam.speech.Transcript` in their order; their windows are decoded together.

        Args:
            recordings: the name of a sound file, an open one, samples [n] float32 from -1 to 1 at
                `sampling_rate` as an array or a tensor, or a `pybeam.Recording`; or a list or another
                iterable of such.
            vad: whether parts in which nobody speaks are left out; see `pybeam.speech.VoiceActivity`.
            search: another search than the decoder's, for this call.
            on_error: what to do about one of several recordings that fails: "raise" raises its error when
                all before it are done; "return" puts the error in the place of its transcript.
            options: those of `pybeam.TranscriptionOptions`, such as ``language="en"`` and ``words=True``.

        Raises:
            pybeam.TranscribeError: a recording failed.
            ImportError: `vad` needs a package that is missing.
            TypeError, ValueError: `recordings` is none of these, or an option is wrong.
        """
        check_on_error(on_error)
        if is_one(recordings):
            return self._segments(recordings, vad, search, options)
        total = len(recordings) if isinstance(recordings, list | tuple) else None
        found = []
        with self._bar(total) as bar:
            for one in self._transcripts(recordings, vad, search, on_error, options):
                found.append(one)
                bar.update()
        return found

    def stream(
        self,
        recordings: Any,
        *,
        vad: bool = False,
        search: Algorithm | None = None,
        on_error: OnError = "raise",
        **options: Any,
    ) -> Segments | Iterator[Any]:
        """Return the segments of one recording, or yield the transcripts of several in their order.

        Recordings are read as they are needed, so there may be any number.

        Args:
            recordings, vad, search, on_error, options: as for `transcribe`.

        Raises:
            pybeam.TranscribeError, ImportError, TypeError, ValueError: as `transcribe`.
        """
        check_on_error(on_error)
        if is_one(recordings):
            return self._segments(recordings, vad, search, options)
        return self._transcripts(recordings, vad, search, on_error, options)

    async def atranscribe(
        self, recordings: Any, *, on_error: OnError = "raise", **options: Any
    ) -> Any:
        """Return the transcript of a recording, or a list of them, without blocking the event loop.

        The windows of all callers with equal options are decoded together, in a thread that begins with the
        first call (`pybeam.Service`).

        Args:
            recordings, on_error, options: as for `transcribe`.

        Raises:
            pybeam.TranscribeError, ImportError, TypeError, ValueError: as `transcribe`.
        """
        check_on_error(on_error)
        served = self._served_with(**options)
        if is_one(recordings):
            return raised(await served.transcript(0, recordings), on_error)
        # read before any work is there that nobody would await if reading failed
        listed = list(several(recordings, check_one))
        work = [served.transcript(*one) for one in enumerate(listed)]
        return [raised(one, on_error) for one in await asyncio.gather(*work)]

    def astream(
        self, recordings: Any, *, on_error: OnError = "raise", **options: Any
    ) -> AsyncIterator[Any]:
        """Yield the same as `stream`, for ``async for``. The windows of all callers are decoded together.

        Args:
            recordings: as for `stream`; or an asynchronous iterable of recordings.
            on_error, options: as for `stream`.

        Raises:
            pybeam.TranscribeError, ImportError, TypeError, ValueError: as `stream`.
        """
        check_on_error(on_error)
        served = self._served_with(**options)
        if is_one(recordings):
            return served.segments(recordings)
        if not isinstance(recordings, AsyncIterable):
            recordings = several(recordings, check_one)
        return served.transcripts(recordings, on_error, self.decoder.schedule.n)

    def live(
        self,
        chunks: Iterable[Any],
        *,
        rate: int | None = None,
        encoding: Encoding = "s16le",
        activity: VoiceActivity | None = None,
        search: Algorithm | None = None,
        **options: Any,
    ) -> Iterator[Segment]:
        """Yield the segments of a stream of sound, such as that of a microphone, as they settle.

        Args:
            chunks, rate, encoding, activity: see `pybeam.Transcriber.live`.
            search: another search than the decoder's, for this call.
            options: those of `pybeam.TranscriptionOptions`.

        Raises:
            ImportError, TypeError, ValueError: see `pybeam.Transcriber.live`.
        """
        asked = self if search is None else self.with_search(search)
        transcriber = asked._transcriber(threading.get_ident(), TranscriptionOptions(**options))
        return transcriber.live(chunks, rate=rate, encoding=encoding, activity=activity)

    def alive(
        self,
        chunks: Iterable[Any] | AsyncIterable[Any],
        *,
        rate: int | None = None,
        encoding: Encoding = "s16le",
        activity: VoiceActivity | None = None,
        **options: Any,
    ) -> AsyncIterator[Segment]:
        """Yield the same as `live`, for ``async for``. Windows of all callers are decoded together.

        Args:
            chunks: as for `live`; or an asynchronous iterable of chunks, such as those of a socket.
            rate, encoding, activity, options: as for `live`.

        Raises:
            ImportError, TypeError, ValueError: as `live`.
        """
        finder = UtteranceFinder(activity, rate, encoding)
        return self._served_with(**options).live(chunks, finder)

    def _served_with(
        self, *, vad: bool = False, search: Algorithm | None = None, **options: Any
    ) -> Served:
        asked = self if search is None else self.with_search(search)
        return asked._served(vad, TranscriptionOptions(**options))

    def _segments(
        self, recording: Any, vad: bool, search: Algorithm | None, options: dict[str, Any]
    ) -> Segments:
        return Segments(self._news([recording], vad, search, options))

    def _transcripts(
        self,
        recordings: Iterable[Any],
        vad: bool,
        search: Algorithm | None,
        on_error: OnError,
        options: dict[str, Any],
    ) -> Iterator[Transcript | Exception]:
        """Return the transcripts of recordings in their order."""
        return in_order(self._news(several(recordings, check_one), vad, search, options), on_error)

    def _news(
        self,
        recordings: Iterable[Any],
        vad: bool,
        search: Algorithm | None,
        options: dict[str, Any],
    ) -> Iterator[Progress]:
        asked = self if search is None else self.with_search(search)
        transcriber = asked._transcriber(threading.get_ident(), TranscriptionOptions(**options))
        sounds = Sounds(self.sampling_rate, vad)
        return transcriber.stream(map(sounds, recordings))

    def _keep(self) -> None:
        """Keep what transcribes with the latest options."""
        parts = self.model, self.path, self._search, self.decoder.schedule

        # each thread has its own, since words are aligned in one memory
        @lru_cache(KEPT)
        def transcriber(thread: int, options: TranscriptionOptions) -> Transcriber:
            model, path, search, schedule = parts
            return Transcriber(model, path, options, algorithm=search, schedule=schedule)

        @lru_cache(KEPT)
        def served(vad: bool, options: TranscriptionOptions) -> Served:
            return Served(*parts, options, vad)

        self._transcriber, self._served = transcriber, served


def in_order(news: Iterable[Progress], on_error: OnError) -> Iterator[Transcript | Exception]:
    """Yield the transcripts of recordings, or the errors that they failed with, in their order."""
    done: dict[int, Transcript | TranscribeError] = {}
    place = 0
    for one in news:
        if one.error is not None:
            done[one.index] = _failure(one)
        elif one.transcript is not None:
            done[one.index] = one.transcript
        while place in done:
            yield raised(done.pop(place), on_error)
            place += 1


def _failure(news: Progress) -> TranscribeError:
    """Return the error of a recording, with its cause."""
    error = TranscribeError(news.index, news.id, str(news.error))
    error.__cause__ = news.error
    return error
