"""Words of transcripts: the law of the batch, and models that have none."""

from __future__ import annotations

import pytest

import pybeam
from pybeam.export import export_onnx
from support.tiny_whisper import save_whisper, sounds

LENGTHS = (150, 64, 100)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper")
    save_whisper(path)
    return path


@pytest.mark.slow
@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("windows", ["sequential", "batched"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_words_are_those_of_each_recording_alone(directory, windows, dtype):
    options = pybeam.TranscriptionOptions(
        words=True, windows=windows, max_new_tokens=20, temperatures=(0.0, 0.6), best_of=3
    )
    model = pybeam.load_model(directory, dtype=dtype)
    recordings = sounds(*LENGTHS)
    together = list(pybeam.Transcriber(model, directory, options).transcribe(recordings))
    transcriber = pybeam.Transcriber(model, directory, options, schedule=pybeam.Fifo(1))
    assert together == [next(transcriber.transcribe([one])) for one in recordings]
    words = [word for one in together for part in one.segments for word in part.words]
    assert len(words) > 3 and all(0 <= word.start <= word.end for word in words)


def test_models_without_attention_are_refused(directory, tmp_path):
    pytest.importorskip("onnxruntime")
    export_onnx(pybeam.load_model(directory), tmp_path)
    options = pybeam.TranscriptionOptions(words=True)
    with pytest.raises(ValueError, match="`model` must be a Whisper model whose layers"):
        pybeam.Transcriber(pybeam.load_model(tmp_path), directory, options)
