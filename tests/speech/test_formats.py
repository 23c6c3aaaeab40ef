"""Transcripts in openai-whisper's formats, and what others read in them."""

import json

import pysubs2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybeam.speech.transcript import FORMATS, Segment, Transcript, Word, format_transcript

# as openai-whisper's own writers wrote them
EXPECTED = {
    "srt": (
        "1\n00:00:00,000 --> 00:00:02,500\nHello, world.\n\n"
        "2\n01:01:01,005 --> 01:01:02,000\n-> a\ttab\n\n"
    ),
    "vtt": (
        "WEBVTT\n\n00:00.000 --> 00:02.500\nHello, world.\n\n"
        "01:01:01.005 --> 01:01:02.000\n-> a\ttab\n\n"
    ),
    "tsv": "start\tend\ttext\n0\t2500\tHello, world.\n3661005\t3662000\t--> a tab\n",
}
NUMBERS = dict(
    average_log_prob=-0.25, no_speech_probability=0.125, temperature=0.0, compression_ratio=1.5
)


def segment(start: float, end: float, text: str, words=()) -> Segment:
    return Segment(start, end, text, (7, 8), words=tuple(words), **NUMBERS)


SEGMENTS = (segment(0.0, 2.5, " Hello, world."), segment(3661.0049, 3662.0, " --> a\ttab"))
TRANSCRIPT = Transcript("en", 0.75, 3700.0, SEGMENTS)


@pytest.mark.parametrize("form", ["srt", "vtt", "tsv"])
def test_text_is_written_as_openai_whisper_does(form):
    assert format_transcript(TRANSCRIPT, form) == EXPECTED[form]


def test_plain_text_and_json():
    assert format_transcript(TRANSCRIPT, "txt") == "Hello, world.\n--> a\ttab\n"
    words = (Word(" Hello,", 0.1, 0.9, 0.5), Word(" world.", 1.0, 2.2, 0.25))
    spoken = Transcript("en", None, 3.0, (segment(0.0, 2.5, " Hello, world.", words),))
    assert json.loads(format_transcript(spoken, "json")) == {
        "text": "Hello, world.",
        "language": "en",
        "language_probability": None,
        "duration": 3.0,
        "segments": [
            {
                "id": 0,
                "start": 0.0,
                "end": 2.5,
                "text": " Hello, world.",
                "tokens": [7, 8],
                "temperature": 0.0,
                "avg_logprob": -0.25,
                "compression_ratio": 1.5,
                "no_speech_prob": 0.125,
                "words": [
                    {"word": " Hello,", "start": 0.1, "end": 0.9, "probability": 0.5},
                    {"word": " world.", "start": 1.0, "end": 2.2, "probability": 0.25},
                ],
            }
        ],
    }
    # a subtitle lasts from its first word to its last one
    assert "00:00:00,100 --> 00:00:02,200\nHello, world." in format_transcript(spoken, "srt")
    assert "words" not in json.loads(format_transcript(TRANSCRIPT, "json"))["segments"][0]


def test_nothing_was_said():
    silence = Transcript(None, None, 1.0, ())
    found = {form: format_transcript(silence, form) for form in FORMATS}
    assert found | {"json": ""} == {
        "txt": "",
        "srt": "",
        "vtt": "WEBVTT\n\n",
        "tsv": "start\tend\ttext\n",
        "json": "",
        "jsonl": "",
    }
    assert json.loads(found["json"])["segments"] == []


def test_other_forms_are_refused():
    with pytest.raises(
        ValueError, match="`form` must be one of txt, srt, vtt, tsv, json, jsonl, but is"
    ):
        format_transcript(TRANSCRIPT, "doc")


times = st.integers(0, 5 * 3_600_000)
texts = st.text(alphabet="abc é語-->\t\n\r\v ,.'\"", max_size=12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(times, times, texts), max_size=5), st.sampled_from(["srt", "vtt"]))
def test_others_read_the_subtitles_that_were_written(cues, form):
    """Times to the millisecond, and texts but for line breaks and arrows."""
    segments = [segment(start / 1000, end / 1000, text) for start, end, text in cues]
    written = format_transcript(Transcript("en", None, 1.0, tuple(segments)), form)
    read = pysubs2.SSAFile.from_string(written, format_=form)
    expected = [
        (start, end, " ".join(text.strip().splitlines()).replace("-->", "->"))
        for start, end, text in cues
    ]
    found = [(event.start, event.end, event.plaintext) for event in read]
    assert found == [cue for cue in expected if cue[2]]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(times, times, texts), max_size=5))
def test_a_table_has_a_line_for_each_segment(cues):
    segments = [segment(start / 1000, end / 1000, text) for start, end, text in cues]
    written = format_transcript(Transcript("en", None, 1.0, tuple(segments)), "tsv")
    lines = [line.split("\t") for line in written.split("\n")[1:-1]]
    assert [(int(start), int(end)) for start, end, _ in lines] == [cue[:2] for cue in cues]
