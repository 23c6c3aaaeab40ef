"""Write a transcript as text, subtitles, a table or JSON, as openai-whisper does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from pybeam.arguments import ArgumentError
from pybeam.speech.transcript import Segment, Transcript


def format_transcript(transcript: Transcript, form: str) -> str:
    """Return the content of a file of this form, with a line end behind its last line.

    A segment is one line, or one subtitle. Line breaks in its text become spaces. Subtitles of a segment
    with words last from its first word to its last one.

    Args:
        transcript: what was said.
        form: "txt": the texts. "srt" or "vtt": subtitles. "tsv": start and end in milliseconds, and the text,
            under a line of names. "json": one object with ``text``, ``language``, ``duration`` and
            ``segments``, whose fields have openai-whisper's names.

    Raises:
        ValueError: there is no such form.
    """
    if form not in FORMATS:
        raise ArgumentError("form", f"must be one of {', '.join(FORMATS)}, but is {form!r}")
    return FORMATS[form](transcript)


def _txt(transcript: Transcript) -> str:
    return "".join(f"{_line(segment.text)}\n" for segment in transcript.segments)


def _srt(transcript: Transcript) -> str:
    cues = enumerate(_cues(transcript), start=1)
    return "".join(
        f"{i}\n{_time(start, ',', has_hours=True)} --> {_time(end, ',', has_hours=True)}\n{text}\n\n"
        for i, (start, end, text) in cues
    )


def _vtt(transcript: Transcript) -> str:
    cues = [
        f"{_time(start, '.')} --> {_time(end, '.')}\n{text}\n\n"
        for start, end, text in _cues(transcript)
    ]
    return "".join(["WEBVTT\n\n", *cues])


def _tsv(transcript: Transcript) -> str:
    lines = [
        f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t"
        f"{_line(segment.text).replace(chr(9), ' ')}\n"
        for segment in transcript.segments
    ]
    return "".join(["start\tend\ttext\n", *lines])


def _json(transcript: Transcript) -> str:
    content = {
        "text": transcript.text,
        "language": transcript.language,
        "language_probability": transcript.language_probability,
        "duration": transcript.duration,
        "segments": [_fields(i, one) for i, one in enumerate(transcript.segments)],
    }
    return json.dumps(content, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Transcript], str]] = {
    "txt": _txt,
    "srt": _srt,
    "vtt": _vtt,
    "tsv": _tsv,
    "json": _json,
}


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
            {
                "word": word.text,
                "start": word.start,
                "end": word.end,
                "probability": word.probability,
            }
            for word in segment.words
        ]
    return fields


def _cues(transcript: Transcript) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and text of each subtitle."""
    for segment in transcript.segments:
        start, end, text = segment.start, segment.end, segment.text
        if segment.words:
            start, end = segment.words[0].start, segment.words[-1].end
            text = "".join(word.text for word in segment.words)
        # this arrow stands between the times of a subtitle
        text = _line(text).replace("-->", "->")
        if text:
            yield start, end, text


def _line(text: str) -> str:
    return " ".join(text.strip().splitlines())


def _time(seconds: float, point: str, *, has_hours: bool = False) -> str:
    """Write minutes, seconds and milliseconds, and hours if there are some or there must be."""
    whole, milliseconds = divmod(round(1000 * seconds), 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    before = f"{hours:02d}:" if hours or has_hours else ""
    return f"{before}{minute:02d}:{second:02d}{point}{milliseconds:03d}"
