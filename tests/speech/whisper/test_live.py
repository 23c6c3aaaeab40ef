"""Streams of sound: their segments are those of their utterances, whatever the chunks, and come in time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import pybeam
from pybeam.speech import SpeechRules
from pybeam.speech.voice_activity import FRAME, RATE
from pybeam.speech.whisper import Recording
from support.spoken import chunks_of, frank_activity, sound_of
from support.tiny_whisper import OPTIONS

# the tiny model hears a second
SEARCH = replace(OPTIONS, temperatures=(0.0,), no_speech_threshold=None)
RULES = SpeechRules(max_speech=1.6, min_silence=0.3, padding=0.1)


def speech(num: int, seed: int) -> torch.Tensor:
    """So many stretches of speech, some of which are longer than a window or than an utterance may be."""
    rng = np.random.default_rng(seed)
    parts = [np.repeat([0.1, 0.9], rng.integers([10, 8], [30, 90])) for _ in range(num)]
    return sound_of(np.concatenate([*parts, np.full(12, 0.1)]), seed)


def expected_segments(transcriber, options, activity, whole: torch.Tensor) -> Iterator:
    """Transcribe each stretch of the whole sound as a recording of its own."""
    language, said = None, []
    for one in activity(whole):
        samples = whole[round(one.start * RATE) : round(one.end * RATE)]
        [transcript] = transcriber.transcribe(
            [Recording(samples, language=language, previous=said)]
        )
        if (transcript.language_probability or 0) > options.language_detection_threshold:
            language = transcript.language
        for segment in transcript.segments:
            sees = options.condition_on_previous_text and options.windows == "sequential"
            if not sees or segment.temperature > 0.5:
                said = []
            else:
                said = [*said, *segment.tokens]
            words = tuple(
                replace(
                    word, start=round(word.start + one.start, 3), end=round(word.end + one.start, 3)
                )
                for word in segment.words
            )
            start, end = round(segment.start + one.start, 3), round(segment.end + one.start, 3)
            yield replace(segment, start=start, end=end, words=words)


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize(
    "changes",
    [
        dict(temperatures=(0.0, 0.6)),
        pytest.param(
            dict(words=True, multilingual=True, language_detection_threshold=0.9),
            marks=pytest.mark.slow,
        ),
        dict(
            language="de", condition_on_previous_text=False, initial_prompt="as", stage="log_probs"
        ),
        dict(windows="batched", timestamps=False, language_detection_threshold=0.0),
    ],
    ids=lambda changes: ",".join(changes),
)
def test_a_stream_is_its_utterances(model, directory, changes, monkeypatch):
    options, activity = replace(SEARCH, **changes), frank_activity(monkeypatch, RULES)
    transcriber, whole = pybeam.Transcriber(model, directory, options), speech(3, seed=3)
    expected = list(expected_segments(transcriber, options, activity, whole))
    assert len(expected) > 2
    assert list(transcriber.live([whole], activity=activity)) == expected
    chunks = chunks_of(whole, np.random.default_rng(4))
    assert list(transcriber.live(chunks, activity=activity)) == expected


def test_what_was_said_is_seen(model, directory, monkeypatch):
    options = replace(SEARCH, language="en")
    activity, whole = frank_activity(monkeypatch, RULES), speech(6, seed=3)
    texts = []
    for sees in (True, False):
        options = replace(options, condition_on_previous_text=sees)
        transcriber = pybeam.Transcriber(model, directory, options)
        texts.append([one.text for one in transcriber.live([whole], activity=activity)])
    assert texts[0] != texts[1] and texts[0][0] == texts[1][0]


def test_segments_come_when_their_utterance_has_ended(model, directory, monkeypatch):
    """They are handed on before any later sound is asked for."""
    activity = frank_activity(monkeypatch, replace(RULES, max_speech=30.0))
    transcriber, whole = pybeam.Transcriber(model, directory, SEARCH), speech(3, seed=8)
    taken = 0

    def chunks() -> Iterator[torch.Tensor]:
        nonlocal taken
        for chunk in whole.split(FRAME):
            taken += len(chunk)
            yield chunk

    ends = [one.end for one in activity(whole)]
    seconds = {taken / RATE for _ in transcriber.live(chunks(), activity=activity)}
    for at, end in zip(sorted(seconds), ends, strict=True):
        assert end + 0.2 <= at <= end + 0.2 + 5 * FRAME / RATE or at == len(whole) / RATE


def test_silence_is_not_decoded(model, directory, monkeypatch):
    activity = frank_activity(monkeypatch, RULES)
    transcriber = pybeam.Transcriber(model, directory, OPTIONS)
    silence = [np.zeros(7000, np.int16).tobytes()] * 40
    assert list(transcriber.live(silence, activity=activity)) == []
    assert transcriber.stats.steps == 0 and activity._session.num_frames > 500


def test_wrong_streams_are_refused(model, directory, monkeypatch):
    activity = frank_activity(monkeypatch, RULES)
    transcriber = pybeam.Transcriber(model, directory, OPTIONS)
    with pytest.raises(ValueError, match="`encoding` must be one of"):
        transcriber.live([], encoding="ogg", activity=activity)
    with pytest.raises(TypeError, match=r"a chunk must be bytes, or an array .* but is int"):
        list(transcriber.live(bytes(8), activity=activity))
    begun = pybeam.Transcriber(model, directory, replace(OPTIONS, prefix="as"))
    with pytest.raises(ValueError, match="`prefix` is for recordings"):
        begun.live([], activity=activity)

    def chunks() -> Iterator[torch.Tensor]:
        yield speech(2, seed=8)
        raise OSError("the microphone is gone")

    found = []
    with pytest.raises(OSError, match="the microphone is gone"):
        found.extend(transcriber.live(chunks(), activity=activity))
    assert found


@pytest.mark.slow
def test_memory_does_not_grow_with_a_stream(model, directory, monkeypatch):
    """An hour of sound, in which somebody speaks half of the time."""
    activity = frank_activity(monkeypatch, RULES)
    transcriber, minute = pybeam.Transcriber(model, directory, SEARCH), speech(24, seed=5)
    num_chunks, held = 60 * 60 * RATE // len(minute), []

    def chunks() -> Iterator[torch.Tensor]:
        for _ in range(num_chunks):
            yield from minute.split(1600)
            held.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    try:
        num_segments = sum(1 for _ in transcriber.live(chunks(), activity=activity))
    finally:
        tracemalloc.stop()
    assert num_segments > num_chunks
    # what is kept between calls is there after some minutes
    assert max(held[5:]) < held[5] + (1 << 18)
