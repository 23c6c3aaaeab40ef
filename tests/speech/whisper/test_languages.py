"""Which language is heard, in a recording and in each of its windows; and how long windows are."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import pybeam
from pybeam.speech.transcript import Stretch
from support.paths import ROOT
from support.tiny_whisper import (
    BEGIN,
    GENERATION,
    NO_STAMPS,
    OPTIONS,
    STAMPS,
    SUPPRESSED,
    WINDOW,
    save_whisper,
    sounds,
    transcribed,
)

CODES = {"en", "de", "fr"}
LENGTHS = (250, 64, 100, 318)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper")
    # it hears several languages
    save_whisper(path, 4)
    return path


@pytest.fixture(scope="module")
def model(directory):
    return pybeam.load_model(directory)


def detected(model, directory, recordings, **options) -> list:
    options = replace(OPTIONS, **options)
    return [*pybeam.Transcriber(model, directory, options).detect_languages(recordings)]


def windows_of(recording: torch.Tensor) -> list[torch.Tensor]:
    return [recording[first : first + WINDOW] for first in range(0, len(recording), WINDOW)]


def test_languages_are_those_of_transcripts(model, directory):
    recordings = sounds(*LENGTHS, seed=6)
    found = detected(model, directory, recordings)
    for one, transcript in zip(found, transcribed(model, directory, recordings), strict=True):
        assert (one.code, one.probability) == (
            transcript.language,
            transcript.language_probability,
        )
        values = list(one.probabilities.values())
        assert one.probabilities.keys() == CODES and sum(values) == pytest.approx(1)
        assert values == sorted(values, reverse=True)
        assert next(iter(one.probabilities.items())) == (one.code, one.probability)
    assert [detected(model, directory, [one])[0] for one in recordings] == found
    assert len({one.probability for one in found}) == len(found)


def test_several_windows_are_heard_until_one_is_sure(model, directory):
    recordings = sounds(*LENGTHS, seed=6)
    for num_windows, threshold in ((2, 0.0), (3, 0.45), (3, 1.0), (9, 1.0)):
        found = detected(
            model,
            directory,
            recordings,
            language_detection_segments=num_windows,
            language_detection_threshold=threshold,
        )
        for one, recording in zip(found, recordings, strict=True):
            heard = []
            for window in windows_of(recording)[:num_windows]:
                heard += detected(model, directory, [window])
                if heard[-1].probability > threshold:
                    assert one == heard[-1]
                    break
            else:
                codes = [two.code for two in heard]
                assert one.code == max(codes, key=codes.count)
                assert one.probability == max(
                    two.probability for two in heard if two.code == one.code
                )
                assert one.probabilities == heard[-1].probabilities


def test_a_transcript_has_the_language_that_is_detected(model, directory):
    recordings = sounds(250, 318, seed=6)
    asked = dict(language_detection_segments=3, language_detection_threshold=1.0)
    found = detected(model, directory, recordings, **asked)
    transcripts = transcribed(model, directory, recordings, replace(OPTIONS, **asked))
    assert [(one.language, one.language_probability) for one in transcripts] == [
        (one.code, one.probability) for one in found
    ]


def test_where_there_is_no_language(model, directory, tmp_path):
    assert detected(model, directory, [torch.zeros(0, 6)]) == [None]
    silent = pybeam.Recording(sounds(64)[0], stretches=[])
    assert detected(model, directory, [silent, *sounds(64)])[0] is None
    save_whisper(tmp_path)
    (tmp_path / "generation_config.json").write_text(
        json.dumps(GENERATION | {"is_multilingual": False})
    )
    assert detected(pybeam.load_model(tmp_path), tmp_path, sounds(64)) == [None]


def test_a_bad_recording_is_told_in_its_place(model, directory):
    recordings = [*sounds(64), torch.zeros(5, dtype=torch.int64), *sounds(100)]
    named = [pybeam.Recording(one, id=name) for one, name in zip(recordings, "abc", strict=True)]
    news = pybeam.Transcriber(model, directory, OPTIONS).detect_languages(named)
    assert next(news).code in CODES
    with pytest.raises(pybeam.TranscribeError, match="recording 1 failed: a recording must be"):
        next(news)
    with pytest.raises(TypeError, match="`recordings` must be a list of recordings"):
        pybeam.Transcriber(model, directory, OPTIONS).detect_languages(sounds(64)[0])


@pytest.mark.parametrize("windows", ["sequential", "batched"])
def test_each_window_has_its_language(model, directory, windows):
    """As if each were a recording that is known to be in it; the transcript's is that of the first."""
    [recording] = sounds(318, seed=2)
    options = replace(
        OPTIONS,
        windows=windows,
        timestamps=False,
        temperatures=[0.0],
        no_speech_threshold=None,
        condition_on_previous_text=False,
        # a random model writes timestamps even where it is told not to
        suppress_tokens=(*SUPPRESSED, *range(NO_STAMPS, BEGIN + len(STAMPS))),
    )
    [found] = transcribed(model, directory, [recording], replace(options, multilingual=True))
    parts = windows_of(recording)
    heard = detected(model, directory, parts)
    assert found.language == heard[0].code and len({one.code for one in heard}) > 1
    told = [
        pybeam.Recording(part, language=one.code) for part, one in zip(parts, heard, strict=True)
    ]
    expected = transcribed(model, directory, told, options)
    assert [one.tokens for one in found.segments] == [
        one.tokens for transcript in expected for one in transcript.segments
    ]
    alike = transcribed(model, directory, [recording], replace(options, language=found.language))
    assert alike[0].segments != found.segments


@pytest.mark.parametrize("windows", ["sequential", "batched"])
def test_shorter_windows(windows):
    """A model that hears ten seconds, with four seconds of sound in each window."""
    path = ROOT / "examples" / "models" / "spoken-verses-en"
    model, extract = pybeam.load_model(path), pybeam.speech.load_feature_extractor(path)
    sound = pybeam.speech.read_wav(ROOT / "examples" / "speech" / "phrases" / "first.wav", 16000)
    features = extract.recording(torch.cat([sound, sound.flip(0), sound])[: 11 * 16000])
    options = pybeam.TranscriptionOptions(
        timestamps=False, windows=windows, temperatures=[0.0], condition_on_previous_text=False
    )
    [found] = transcribed(model, path, [features], replace(options, chunk_length=4))
    parts = [pybeam.Recording(features, [Stretch(first, first + 4)]) for first in (0, 4, 8)]
    expected = transcribed(model, path, parts, options)
    assert found.segments == tuple(one for each in expected for one in each.segments)
    assert len(found.segments) > 1
    with pytest.raises(ValueError, match="`chunk_length` must be at most the 10 s that the model"):
        pybeam.Transcriber(model, path, replace(options, chunk_length=11))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(chunk_length=0), "`chunk_length` must be"),
        (dict(language_detection_segments=0), "`language_detection_segments` must be"),
        (dict(language_detection_threshold="a"), "`language_detection_threshold` must be"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        replace(OPTIONS, **options)
