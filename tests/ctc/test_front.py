"""A model of CTC in one line: `pybeam.load`, and `pybeam transcribe`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pybeam
from pybeam import ctc
from pybeam.cli import main
from pybeam.speech import format_transcript, read_wav
from support.speech_models import tone, write_wav
from support.wav2vec2_files import write_wav2vec2

pytest.importorskip("transformers")
RATE = 16000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("wav2vec2")
    write_wav2vec2(path, seed=4, initializer_range=0.2)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sounds")
    paths = [directory / f"{name}.wav" for name in ("long", "short", "empty")]
    for path, num in zip(paths, (20000, 9000, 0), strict=True):
        write_wav(path, tone(num, seed=num), RATE)
    return paths


def expected(folder, files, **options) -> list:
    transcriber = ctc.Transcriber(ctc.load_model(folder), folder, **options)
    return list(transcriber.transcribe([read_wav(path, RATE) for path in files]))


def test_load_gives_a_recognizer(folder, files, tmp_path):
    recognizer = pybeam.load(folder)
    transcripts = expected(folder, files)
    assert any(one.text for one in transcripts)
    assert recognizer.transcribe(files) == transcripts
    assert recognizer.transcribe(str(files[0])) == transcripts[0]
    samples = read_wav(files[0], RATE)
    for one in (samples, samples.numpy().astype(np.float64), pybeam.Recording(samples)):
        assert recognizer.transcribe(one) == transcripts[0]
    assert recognizer.transcribe(files[:1], width=8) == expected(folder, files[:1], width=8)
    assert repr(recognizer).startswith("CtcRecognizer(")
    found = recognizer.transcribe([tmp_path / "none.wav", samples], on_error="return")
    assert isinstance(found[0], pybeam.TranscribeError) and found[1] == transcripts[0]
    with pytest.raises(pybeam.TranscribeError, match="recording 0 failed"):
        recognizer.transcribe(tmp_path / "none.wav")
    with pytest.raises(TypeError, match="must be the name of a sound file"):
        recognizer.transcribe([3])
    features = recognizer.transcribe(pybeam.Recording(torch.zeros(3, 80)), on_error="return")
    assert "takes no features" in str(features)


def test_options_of_decoders_are_refused(folder):
    with pytest.raises(ValueError, match="`search` is for models with a decoder"):
        pybeam.load(folder, search=pybeam.greedy())
    with pytest.raises(ValueError, match="`target` is for models with a decoder"):
        pybeam.load(folder, target="en")
    with pytest.raises(ValueError, match="must be one model of CTC, but there are 2"):
        pybeam.load([folder, folder])


def test_the_command_line_writes_transcripts(folder, files, tmp_path, capfd):
    def run(*options):
        code = main(["transcribe", "--model", str(folder), "--quiet", *map(str, options)])
        output = capfd.readouterr()
        return code, output.out, output.err

    texts = "".join(f"{' '.join(one.text.split())}\n" for one in expected(folder, files))
    assert run(*files) == (0, texts, "")
    out = tmp_path / "out"
    code, *_ = run(*files, "--format=srt", "--format=json", f"--output-dir={out}", "--width=8")
    assert code == 0
    for path, transcript in zip(files, expected(folder, files, width=8), strict=True):
        for form in ("srt", "json"):
            found = (out / f"{path.stem}.{form}").read_text("utf-8")
            assert found == format_transcript(transcript, form)
    for options, message in (
        (["--temperatures=0"], "--temperatures is for models with a decoder"),
        (["--algorithm=fixed"], "--algorithm is for models with a decoder"),
        (["--language=en"], "--language is for models with a decoder"),
        (["--json"], "--json is for models with a decoder"),
        (["--width=4,8"], "--width must be one number"),
        ([f"--output-dir={out}"], "--output-dir needs --format"),
    ):
        code, printed, errors = run(files[0], *options)
        assert (code, printed) == (2, "") and message in errors
    code, _, errors = (
        main(["transcribe", "--model", str(folder), str(tmp_path / "none.wav")]),
        *(capfd.readouterr()),
    )
    assert code == 1 and "none.wav" in errors
