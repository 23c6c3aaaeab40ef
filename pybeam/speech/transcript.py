"""Words, segments and whole transcripts of a recording, and how files of them are written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pybeam.arguments import ArgumentError


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recording, such as one in which somebody speaks.

    Attributes:
        start, end: seconds from the beginning of the recording.

    Raises:
        ValueError: it has no length, or begins before the recording.
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(
                f"a stretch must have 0 <= start < end, but is {self.start} to {self.end} s"
            )


@dataclass(frozen=True, slots=True)
class Word:
    """A word and when it is said.

    Attributes:
        text: the word with the space before it and the punctuation that belongs to it.
        start, end: seconds from the beginning of the recording.
        probability: the mean probability of its tokens.
    """

    text: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a transcript, such as a sentence. Some of its numbers are those of its window.

    Attributes:
        start, end: seconds from the beginning of the recording.
        text: as the tokenizer gives it, with the space before it and without special tokens.
        tokens: ids, timestamps included, EOS not.
        average_log_prob: of the window: the sum of its tokens' log-probabilities, EOS included, divided by
            the number of tokens, EOS included.
        no_speech_probability: of the window: of the token that says that nobody speaks. None: the model has
            no such token.
        temperature: of the window: 0.0 if its text was searched for, else the temperature at which it was
            sampled.
        compression_ratio: of the window: bytes of its text divided by bytes that zlib makes of it.
        words: the words, if they were asked for.
        log_probs: log-probability of each of the tokens; 0 of those with which the output was to begin.
            Empty: nobody has kept them.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    average_log_prob: float
    no_speech_probability: float | None
    temperature: float
    compression_ratio: float
    words: tuple[Word, ...] = ()
    log_probs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Transcript:
    """All that is heard in a recording.

    Attributes:
        language: such as "en"; None: the model knows no languages.
        language_probability: of the language that was detected; None: it was given.
        duration: seconds.
        segments: in the order of time.
    """

    language: str | None
    language_probability: float | None
    duration: float
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """The texts of the segments, joined."""
        return "".join(segment.text for segment in self.segments).strip()


def format_transcript(transcript: Transcript, form: str) -> str:
    """Return the content of a file of this form, with a line end behind its last line.

    A segment is one line, or one subtitle. Line breaks in its text become spaces. Subtitles of a segment
    with words last from its first word to its last one.

    Args:
        transcript: what was said.
        form: "txt": the texts. "srt" or "vtt": subtitles. "tsv": start and end in milliseconds, and the text,
            under a line of names. "json": one object with ``text``, ``language``, ``duration`` and
            ``segments``, whose fields have openai-whisper's names. "jsonl": each segment of these as a line.

    Raises:
        ValueError: there is no such form.
    """
    return TranscriptWriter(form).end(transcript)


class TranscriptWriter:
    """Write one transcript while it comes: segments as they are known, and the end.

    What `more` and `end` return, one behind the other, is what `format_transcript` returns. JSON is one
    object, which comes as a whole at the end.

    Args:
        form: see `format_transcript`.

    Raises:
        ValueError: there is no such form.
    """

    def __init__(self, form: str) -> None:
        if form not in FORMATS:
            raise ArgumentError("form", f"must be one of {', '.join(FORMATS)}, but is {form!r}")
        self._form = form
        self._num_segments = self._num_cues = 0

    def more(self, segments: Sequence[Segment]) -> str:
        """Return what the next `segments` add, with what stands above all of them if they are the first."""
        if self._form == "json":
            return ""
        title = HEADS.get(self._form, "") if segments and not self._num_segments else ""
        first = self._num_segments
        self._num_segments += len(segments)
        return title + "".join(self._text(first + i, one) for i, one in enumerate(segments))

    def end(self, transcript: Transcript) -> str:
        """Return what is left of the whole `transcript`."""
        if self._form == "json":
            return _json(transcript)
        title = "" if self._num_segments else HEADS.get(self._form, "")
        return self.more(transcript.segments[self._num_segments :]) or title

    def _text(self, number: int, segment: Segment) -> str:
        if self._form == "jsonl":
            return _json_line(_fields(number, segment))
        if self._form == "txt":
            return f"{_line(segment.text)}\n"
        if self._form == "tsv":
            text = _line(segment.text).replace("\t", " ")
            return f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n"
        start, end, text = _cue(segment)
        if not text:
            return ""
        self._num_cues += 1
        if self._form == "srt":
            first, last = (
                format_time(start, ",", has_hours=True),
                format_time(end, ",", has_hours=True),
            )
            return f"{self._num_cues}\n{first} --> {last}\n{text}\n\n"
        return f"{format_time(start, '.')} --> {format_time(end, '.')}\n{text}\n\n"


def _json(transcript: Transcript) -> str:
    content = {
        "text": transcript.text,
        "language": transcript.language,
        "language_probability": transcript.language_probability,
        "duration": transcript.duration,
        "segments": [_fields(i, one) for i, one in enumerate(transcript.segments)],
    }
    return _json_line(content)


def _json_line(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False) + "\n"


FORMATS = ("txt", "srt", "vtt", "tsv", "json", "jsonl")
# what stands above all segments
HEADS = {"vtt": "WEBVTT\n\n", "tsv": "start\tend\ttext\n"}


def _fields(number: int, segment: Segment) -> dict[str, Any]:
    fields = {
        "id": number,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.average_log_prob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_probability,
    }
    if segment.words:
        fields["words"] = [
            dict(word=one.text, start=one.start, end=one.end, probability=one.probability)
            for one in segment.words
        ]
    return fields


def _cue(segment: Segment) -> tuple[float, float, str]:
    """Return start, end and text of a subtitle."""
    start, end, text = segment.start, segment.end, segment.text
    if segment.words:
        start, end = segment.words[0].start, segment.words[-1].end
        text = "".join(word.text for word in segment.words)
    # this arrow stands between the times of a subtitle
    return start, end, _line(text).replace("-->", "->")


def _line(text: str) -> str:
    return " ".join(text.strip().splitlines())


def format_time(seconds: float, point: str, *, has_hours: bool = False) -> str:
    """Write minutes, seconds and milliseconds, and hours if there are some or there must be."""
    whole, milliseconds = divmod(round(1000 * seconds), 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    before = f"{hours:02d}:" if hours or has_hours else ""
    return f"{before}{minute:02d}:{second:02d}{point}{milliseconds:03d}"
