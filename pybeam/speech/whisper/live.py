"""The transcript of a stream: its utterances are recordings that know what was said before them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from pybeam.speech.transcript import Segment, Word
from pybeam.speech.utterances import Utterance
from pybeam.speech.whisper.options import TranscriptionOptions
from pybeam.speech.whisper.recording import Progress, Recording

Timed = TypeVar("Timed", Segment, Word)


class RunningTranscript:
    """Makes a recording of each utterance of a stream, and segments of the stream of its news.

    Windows of an utterance see the text of those before it, unless it was sampled at a high temperature, as
    windows of one recording do. The language of the first utterance that is sure of one is that of all that
    follow.

    Args:
        options: of the stream.
        most_said: tokens of the text before an utterance that its windows may see.
    """

    def __init__(self, options: TranscriptionOptions, most_said: int) -> None:
        self._options, self._most_said = options, most_said
        self._language: str | None = None
        self._said: list[int] = []

    def recording(self, utterance: Utterance) -> Recording:
        """Return the recording that an utterance is."""
        return Recording(
            utterance.samples, language=self._language, previous=tuple(self._said), id=utterance
        )

    def add(self, news: Progress) -> list[Segment]:
        """Return the segments in news of the last recording, whose times count from the stream's beginning.

        Raises:
            Exception: what the utterance failed with.
        """
        if news.error is not None:
            raise news.error
        if news.transcript is not None:
            probability = news.transcript.language_probability
            if (probability or 0.0) > self._options.language_detection_threshold:
                self._language = news.transcript.language
            return []
        for segment in news.segments:
            self._remember(segment)
        return [later(segment, news.id.start) for segment in news.segments]

    def _remember(self, segment: Segment) -> None:
        options = self._options
        is_wild = segment.temperature > options.prompt_reset_on_temperature
        if is_wild or not options.condition_on_previous_text or options.windows == "batched":
            self._said = []
        else:
            self._said = [*self._said, *segment.tokens][-self._most_said :]


def later(segment: Segment, seconds: float) -> Segment:
    """Return a segment that is so many seconds later, to the millisecond."""
    words = tuple(_moved(word, seconds) for word in segment.words)
    return replace(_moved(segment, seconds), words=words)


def _moved(given: Timed, seconds: float) -> Timed:
    return replace(given, start=round(given.start + seconds, 3), end=round(given.end + seconds, 3))
