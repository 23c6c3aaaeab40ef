"""`pybeam transcribe --live`: sound on a pipe, and segments that are written as they settle."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import wave

import numpy as np
import pytest

import pybeam
from pybeam.cli import main
from pybeam.speech import Transcript, VoiceActivity, format_transcript
from pybeam.speech.utterances import LIVE_RULES
from pybeam.speech.whisper import beam_search
from support.server_process import wait_until
from support.spoken import frank_activity, sound_of
from support.tiny_whisper import save_whisper

RATE = 16000
OPTIONS = ("--width=2", "--max-length=12", "--temperatures=0", "--no-speech-threshold=none")
# two utterances
WHOLE = (sound_of(np.repeat([0.1, 0.9, 0.1, 0.9], [20, 40, 40, 30])) * 2**15).short().numpy()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whisper")
    save_whisper(directory)
    return directory


@pytest.fixture(autouse=True)
def activity(monkeypatch):
    return frank_activity(monkeypatch, LIVE_RULES)


@pytest.fixture(scope="module")
def segments(model):
    asked = dict(max_new_tokens=12, temperatures=(0.0,), no_speech_threshold=None)
    transcriber = pybeam.Transcriber(
        pybeam.load_model(model),
        model,
        pybeam.TranscriptionOptions(**asked),
        algorithm=beam_search(2),
    )
    with pytest.MonkeyPatch.context() as patch:
        activity = frank_activity(patch, LIVE_RULES)
        found = list(transcriber.live([WHOLE], activity=activity))
    assert len({one.start for one in found}) > 1
    return tuple(found)


def piped(content: bytes) -> int:
    """The end of a pipe that has this content."""
    read, write = os.pipe()

    def fill() -> None:
        with os.fdopen(write, "wb") as file:
            file.write(content)

    threading.Thread(target=fill).start()
    return read


@pytest.fixture
def live(model, monkeypatch, capfd):
    def run(content: bytes, *options: str):
        with os.fdopen(piped(content)) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            code = main(["transcribe", "--model", str(model), *OPTIONS, *options])
        output = capfd.readouterr()
        return code, output.out, output.err

    return run


@pytest.mark.slow
@pytest.mark.parametrize("form", ["txt", "srt", "vtt", "tsv", "jsonl"])
def test_segments_in_every_form(live, segments, form):
    content = format_transcript(Transcript(None, None, 0.0, segments), form)
    assert live(WHOLE.tobytes(), "--live=s16le", f"--format={form}", "-") == (0, content, "")
    if form == "jsonl":
        lines = [json.loads(line) for line in content.splitlines()]
        assert [one["id"] for one in lines] == list(range(len(segments)))
        assert [one["text"] for one in lines] == [one.text for one in segments]


@pytest.mark.slow
@pytest.mark.parametrize("num_channels", [1, 2])
def test_a_wav_file_whose_length_is_not_known(live, segments, num_channels):
    """As ffmpeg writes into a pipe."""
    texts = "".join(f"{one.text.strip()}\n" for one in segments)
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((num_channels, 2, RATE, 0, "NONE", "not compressed"))
        file.writeframes(np.repeat(WHOLE, num_channels).tobytes())
    head = bytearray(content.getvalue())
    head[4:8] = head[40:44] = b"\xff" * 4
    assert live(bytes(head), "--live=wav") == (0, texts, "")


def test_segments_are_written_before_the_sound_ends(model, segments, monkeypatch, tmp_path):
    read, write = os.pipe()
    with os.fdopen(read) as stdin, os.fdopen(write, "wb", buffering=0) as sound:
        monkeypatch.setattr(sys, "stdin", stdin)
        output = tmp_path / "out.txt"
        arguments = ("--live=s16le", f"--output={output}", "--model", str(model), *OPTIONS)
        before: list[str] = []

        def follow() -> None:
            most = len(WHOLE) * 3 // 4
            sound.write(WHOLE[:most].tobytes())
            # nothing more comes until the first segment is written
            wait_until(lambda: output.exists() and output.read_text())
            before.append(output.read_text())
            sound.write(WHOLE[most:].tobytes())
            sound.close()

        thread = threading.Thread(target=follow)
        thread.start()
        assert main(["transcribe", *arguments]) == 0
        thread.join()
    whole = output.read_text()
    assert whole == "".join(f"{one.text.strip()}\n" for one in segments)
    assert before[0] and whole.startswith(before[0]) and before[0] != whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--live=s16le", "a.wav"], "--live takes the sound on stdin; leave other names out"),
        (["--live=wav", "--format=json"], "--format json is one object"),
        (["--live=wav", "--format=srt", "--format=txt"], "--live writes one --format"),
        (["--live=wav", "--format=srt", "--output-dir=x"], "leave --output-dir out"),
        (["--live=wav", "--rate=8000"], "--rate needs --live with raw samples"),
        (["--rate=8000", "-"], "--rate needs --live with raw samples"),
        (["--live=wav", "--first-words=a"], "--first-words"),
        (["--live=wav", "--json"], "--live is for transcripts, but --json writes hypotheses"),
        (["--live=wav", "--vad-max-speech=0.1"], "--live"),
        (["--vad-padding=1", "-"], "--vad-padding needs --vad"),
    ],
)
def test_options_that_do_not_fit(live, options, message):
    code, out, error = live(b"", *options)
    assert (code, out) == (2, "") and message in error


@pytest.mark.slow
def test_what_is_no_sound_is_refused(live):
    code, out, error = live(b"RIFFxxxxWAVE", "--live=wav")
    assert (code, out) == (1, "") and "stdin must be a WAV file with PCM samples" in error
    # nothing is wrong with silence, or with no sound at all
    assert live(b"", "--live=f32le", "--format=vtt") == (0, "WEBVTT\n\n", "")


@pytest.mark.slow
def test_rules_of_pauses(monkeypatch, live):
    found = []
    real = VoiceActivity.__init__

    def note(self, rules=None):
        found.append(rules)
        real(self, rules)

    monkeypatch.setattr(VoiceActivity, "__init__", note)
    options = ("--vad-threshold=0.6", "--vad-min-silence=0.4", "--vad-max-speech=9")
    assert live(b"", "--live=mulaw", "--rate=8000", *options)[0] == 0
    [rules] = found
    assert (rules.threshold, rules.min_silence, rules.max_speech) == (0.6, 0.4, 9.0)
    assert rules.padding == LIVE_RULES.padding
