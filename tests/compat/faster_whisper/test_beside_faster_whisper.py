"""Segments beside faster-whisper's own, of the same random weights: `transcribe` is called alike."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pybeam.compat.faster_whisper import BatchedInferencePipeline, batched, transcribe, vad
from pybeam.speech import read_sound, voice_activity
from support.paths import ROOT

faster_whisper = pytest.importorskip("faster_whisper", reason="compares with faster-whisper")

# one search, and no window is skipped or tried again: no random numbers
SEARCH = dict(
    temperature=0.0,
    log_prob_threshold=None,
    compression_ratio_threshold=None,
    no_speech_threshold=None,
)
# a random model writes timestamps even where it is told not to
NO_STAMPS = [-1, *range(50364, 51865)]
CASES = {
    "plain": dict(language="en"),
    "language heard": {},
    "heard in three windows": dict(
        language_detection_segments=3, language_detection_threshold=0.9, beam_size=1
    ),
    "a language for each window": dict(multilingual=True, condition_on_previous_text=False),
    "translated": dict(language="de", task="translate", beam_size=2, patience=2),
    "greedy, lengths and repetitions": dict(
        language="fr",
        beam_size=3,
        length_penalty=0.5,
        repetition_penalty=1.3,
        no_repeat_ngram_size=2,
    ),
    "repetitions of what is prompted": dict(
        language="en",
        initial_prompt="hello there, hello there",
        repetition_penalty=2.0,
        no_repeat_ngram_size=1,
        without_timestamps=True,
        suppress_tokens=[-1, *range(50364, 51865)],
    ),
    "prompted": dict(language="en", initial_prompt="hello there", hotwords="Ada"),
    "prompted by ids": dict(language="en", initial_prompt=iter([300, 301]), hotwords=""),
    "begun": dict(language="en", prefix="and so", hotwords="Ada"),
    "begun in a later part": dict(language="en", prefix="and so", clip_timestamps=[10.0]),
    "parts": dict(clip_timestamps="2.5,11,14.2,14.9,33"),
    "nothing suppressed": dict(language="en", suppress_tokens=None, suppress_blank=False),
    "some suppressed": dict(language="en", suppress_tokens=[300, 301]),
    "no timestamps": dict(language="en", without_timestamps=True, suppress_tokens=NO_STAMPS),
    "words": dict(language="en", word_timestamps=True),
    "words, other marks": dict(
        language="ja", word_timestamps=True, prepend_punctuations="w", append_punctuations="!"
    ),
    "words invented": dict(
        language="en", word_timestamps=True, hallucination_silence_threshold=0.2
    ),
    "short windows": dict(chunk_length=7, max_initial_timestamp=0.5),
    "without speech": dict(language="en", no_speech_threshold=1.9e-5, log_prob_threshold=0.0),
}


def assert_same(found, expected, abs_seconds: float = 1e-6) -> None:
    found, expected = list(found), list(expected)
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    for own, other in zip(found, expected, strict=True):
        own, other = dataclasses.asdict(own), dataclasses.asdict(other)
        words, others = own.pop("words"), other.pop("words")
        assert (words is None) == (others is None)
        assert_same_fields(own, other, abs_seconds)
        for word, another in zip(words or (), others or (), strict=True):
            assert_same_fields(word, another, abs_seconds)


def assert_same_fields(own: dict, other: dict, abs_seconds: float) -> None:
    assert own.keys() == other.keys()
    for name, value in other.items():
        if name in ("start", "end"):
            assert own[name] == pytest.approx(value, abs=abs_seconds), name
        elif isinstance(value, float):
            assert own[name] == pytest.approx(value, rel=1e-2, abs=1e-3), name
        else:
            assert own[name] == value, name


def assert_same_info(found, expected) -> None:
    own, other = ({**vars(one)} for one in (found, expected))
    options, expected_options = (
        dataclasses.asdict(one.pop("transcription_options")) for one in (own, other)
    )
    assert options == expected_options
    probabilities, expected_probabilities = (
        dict(one.pop("all_language_probs") or ()) for one in (own, other)
    )
    assert probabilities == pytest.approx(expected_probabilities, abs=1e-4)
    rules, expected_rules = (one.pop("vad_options") for one in (own, other))
    assert (rules and vars(rules)) == (expected_rules and vars(expected_rules))
    assert_same_fields(own, other, 1e-6)


QUICK = ("parts", "where speech ends")


def marked(cases: dict) -> list:
    return [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in cases]


@pytest.mark.slow
@pytest.mark.parametrize("case", marked(CASES))
def test_same_segments(model, theirs, samples, case):
    asked = CASES[case]
    prompt = asked.get("initial_prompt")
    if prompt is not None and not isinstance(prompt, str):
        asked = asked | {"initial_prompt": list(prompt)}
    found, info = model.transcribe(samples, **SEARCH | asked)
    expected, expected_info = theirs.transcribe(samples, **SEARCH | asked)
    assert_same_info(info, expected_info)
    found, expected = list(found), list(expected)
    assert_same(found, expected)
    assert found


def test_options_that_are_told(model, theirs, samples):
    """`transcription_options` are those of the call, before a segment is asked for."""
    asked = dict(language="en", temperature=(0.0, 0.5), hotwords="Ada", clip_timestamps=[0, 1])
    options = [
        dataclasses.asdict(one.transcribe(samples, **asked)[1].transcription_options)
        for one in (model, theirs)
    ]
    assert options[0] == options[1]


@pytest.mark.slow
def test_language(model, theirs, samples):
    for asked in (
        dict(audio=samples),
        dict(audio=samples, language_detection_segments=2, language_detection_threshold=0.99),
        dict(features=theirs.feature_extractor(samples[:160000])),
    ):
        own, other = model.detect_language(**asked), theirs.detect_language(**asked)
        assert own[0] == other[0] and own[1] == pytest.approx(other[1], rel=1e-3)
        assert dict(own[2]) == pytest.approx(dict(other[2]), abs=1e-4)


CHUNKS = [
    {"start": 20_000, "end": 181_920},
    {"start": 240_500, "end": 500_007},
    {"start": 500_900, "end": 655_000},
]


@pytest.fixture
def chunks(monkeypatch):
    """Both hear speech in the same places, since tones are none."""
    calls = []

    def heard(audio, options=None, *_):
        calls.append(options)
        return [dict(one) for one in CHUNKS]

    for module in (transcribe, batched, faster_whisper.transcribe):
        monkeypatch.setattr(module, "get_speech_timestamps", heard)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("words", [False, True])
def test_pauses_are_left_out(model, theirs, samples, chunks, words):
    asked = dict(language="en", vad_filter=True, word_timestamps=words) | SEARCH
    asked["vad_parameters"] = dict(min_silence_duration_ms=500)
    found, info = model.transcribe(samples, **asked)
    expected, expected_info = theirs.transcribe(samples, **asked)
    assert_same_info(info, expected_info)
    assert info.duration_after_vad < info.duration == 41
    assert vars(chunks[0]) == vars(chunks[1])
    assert_same(found, expected)


BATCHED = {
    "where speech ends": {},
    "where speech ends, by rules": dict(vad_parameters=dict(speech_pad_ms=100)),
    "given windows": dict(clip_timestamps=[{"start": 0, "end": 10.3}, {"start": 12.05, "end": 41}]),
    "given windows, too long": dict(clip_timestamps=[{"start": 0, "end": 40.0}]),
    "words": dict(
        word_timestamps=True, clip_timestamps=[{"start": 0, "end": 10}, {"start": 12, "end": 29.3}]
    ),
    "shorter windows": dict(chunk_length=17),
    "translated and prompted": dict(
        language="de", task="translate", initial_prompt="hello", hotwords="Ada"
    ),
    "a language for each window": dict(multilingual=True),
    "the search": dict(
        language="en",
        beam_size=2,
        length_penalty=0.7,
        repetition_penalty=1.2,
        no_repeat_ngram_size=3,
    ),
    "what has no effect": dict(
        language="en",
        temperature=(0.3, 0.5),
        prefix="and",
        max_initial_timestamp=3.0,
        no_speech_threshold=0.0,
        hallucination_silence_threshold=1.0,
    ),
}


@pytest.mark.parametrize("case", marked(BATCHED))
def test_same_batched_segments(model, theirs, samples, chunks, case):
    asked = {"suppress_tokens": NO_STAMPS} | BATCHED[case]
    found, info = BatchedInferencePipeline(model).transcribe(samples, **asked)
    pipeline = faster_whisper.BatchedInferencePipeline(theirs)
    expected, expected_info = pipeline.transcribe(samples, **asked)
    assert_same_info(info, expected_info)
    found = list(found)
    assert_same(found, expected)
    assert found


def test_speech_is_found_where_faster_whisper_finds_it(monkeypatch):
    """With its own release of Silero's model."""
    theirs = pytest.importorskip("faster_whisper.vad")
    pytest.importorskip("onnxruntime")
    file = Path(faster_whisper.utils.get_assets_path(), "silero_vad_v6.onnx")
    monkeypatch.setattr(voice_activity, "_model_file", lambda: file)
    sounds = [
        read_sound(ROOT / "examples" / "speech" / f"{name}.wav", 16000)
        for name in ("first", "second")
    ]
    silence = np.zeros(48000, np.float32)
    sound = np.concatenate([silence, sounds[0], silence, sounds[1], silence[:7]])
    for options in ({}, {"min_silence_duration_ms": 100, "speech_pad_ms": 30, "threshold": 0.7}):
        found = vad.get_speech_timestamps(sound, **options)
        assert found == theirs.get_speech_timestamps(sound, theirs.VadOptions(**options)) != []
