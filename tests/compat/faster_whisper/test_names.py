"""The names, arguments, defaults and fields of faster-whisper, where it is installed."""

import dataclasses
import inspect

import pytest

from pybeam.compat import faster_whisper as ours

theirs = pytest.importorskip("faster_whisper", reason="compares with the package faster-whisper")
FUNCTIONS = (
    *("WhisperModel", "WhisperModel.transcribe", "WhisperModel.detect_language"),
    *("BatchedInferencePipeline", "BatchedInferencePipeline.transcribe"),
    *("decode_audio", "available_models", "download_model", "format_timestamp"),
)
RESULTS = ("Word", "Segment", "TranscriptionOptions", "TranscriptionInfo", "VadOptions")


def found(module, name: str):
    for part in name.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_and_defaults(name):
    own, other = (
        [(one.name, one.kind, one.default) for one in inspect.signature(f).parameters.values()]
        for f in (found(ours, name), found(theirs, name))
    )
    assert own == other


@pytest.mark.parametrize("name", RESULTS)
def test_fields(name):
    own, other = getattr(ours, name), getattr(theirs.transcribe, name)
    fields = [
        [(field.name, field.default) for field in dataclasses.fields(kind)] for kind in (own, other)
    ]
    assert fields[0] == fields[1]


def test_everything_is_there():
    assert set(theirs.__all__) - {"__version__"} <= set(ours.__all__)
    assert ours.available_models() == theirs.available_models()


@pytest.mark.parametrize("seconds", [0, 0.0004, 0.9996, 61.25, 3599.9999, 7322.5])
@pytest.mark.parametrize("options", [{}, {"always_include_hours": True}, {"decimal_marker": ","}])
def test_times_are_written_alike(seconds, options):
    assert ours.format_timestamp(seconds, **options) == theirs.format_timestamp(seconds, **options)


def test_results_become_dicts():
    word = ours.Word(0.5, 1.0, " a", 0.25)
    expected = {"start": 0.5, "end": 1.0, "word": " a", "probability": 0.25}
    assert word._asdict() == dataclasses.asdict(word) == expected
