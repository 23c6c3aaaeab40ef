"""`pybeam transcribe` of long recordings: segments as they settle, and memory that does not grow."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import av
import pytest

import pybeam
from pybeam.cli import main
from pybeam.cli.transcript_files import FolderWriter, OneLine
from pybeam.speech import Segment, Transcript, TranscriptWriter, format_transcript
from pybeam.speech.whisper import Progress
from support.paths import ROOT
from support.sound_files import write_sound
from support.speech_models import tone, write_wav
from support.tiny_whisper import save_whisper

RATE = 16000
MOST_MEGABYTES = 150
PROGRAM = """
import re, sys
import pybeam
from pybeam.cli import main

def megabytes(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

kept = pybeam.load_model(sys.argv[1])
before = megabytes("VmRSS")
code = main(["transcribe", "--model", *sys.argv[1:]])
print(megabytes("VmHWM") - before, file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whisper")
    save_whisper(directory)
    return directory


def segment(text: str, start: float) -> Segment:
    return Segment(start, start + 1, text, (1,), -0.5, None, 0.0, 1.0)


@pytest.mark.parametrize("form", ["line", "txt", "srt", "vtt", "tsv", "json"])
def test_pieces_are_the_whole(form):
    chance = random.Random(4)
    texts = [" a", "b ", "", " ", " c\td", "\n", "e f", " --> g"]
    for num in (0, 0, 1, 2, 5, 9, 9, 9):
        segments = [segment(chance.choice(texts), i) for i in range(num)]
        whole = Transcript("en", None, 9.0, tuple(segments))
        writer = OneLine() if form == "line" else TranscriptWriter(form)
        written = ""
        while segments:
            size = chance.randint(0, len(segments))
            written += writer.more(segments[:size])
            segments = segments[size:]
        plain = " ".join(whole.text.split()) + "\n"
        written += writer.end(whole)
        assert written == (plain if form == "line" else format_transcript(whole, form))


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("options", [(), ("--format=txt",), ("--windows=batched", "--format=srt")])
def test_segments_are_written_as_they_settle(model, tmp_path, monkeypatch, options):
    """After the news of each window, its text is in the output."""
    for name, num in (("a", 45000), ("b", 30000)):
        write_wav(tmp_path / f"{name}.wav", tone(num, seed=num), RATE)
    output, found = tmp_path / "out", []
    stream = pybeam.Transcriber.stream

    def watched(self, recordings):
        for news in stream(self, recordings):
            yield news
            written = "".join(output.read_text("utf-8").split())
            texts = ["".join(one.text.split()) for one in news.segments]
            found.append(news.index == 0 and all(text in written for text in texts if text))

    monkeypatch.setattr(pybeam.Transcriber, "stream", watched)
    names = [str(tmp_path / "a.wav")]
    command = ["transcribe", f"--model={model}", *names, "--quiet", "--temperatures=0", *options]
    assert main([*command, f"--output={output}"]) == 0
    assert len(found) > 3 and all(found)


def test_files_are_named_when_they_are_whole(tmp_path):
    folder = FolderWriter(tmp_path, ("a.wav", "b.wav", "c.wav"), ("srt", "json"))
    whole = Transcript("en", None, 2.0, (segment(" x", 0), segment(" y", 1)))
    for index in range(3):
        folder.add(Progress(index, None, 1.0, 2.0, whole.segments[:1]))
    assert "x" in (tmp_path / "b.srt.part").read_text()
    folder.add(Progress(0, None, 2.0, 2.0, transcript=whole))
    folder.add(Progress(1, None, 0.0, 0.0, error=ValueError("no")))
    folder.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.srt"]
    assert (tmp_path / "a.srt").read_text() == format_transcript(whole, "srt")
    assert json.loads((tmp_path / "a.json").read_text())["text"] == "x y"


def write_mp3(path: Path, minutes: int) -> None:
    """Write so many minutes of MP3: the packets of twenty seconds, again and again."""
    short = path.with_name("short.mp3")
    write_sound(short, tone(20 * RATE, seed=7)[None] / 2**16, RATE, codec="libmp3lame")
    with av.open(str(short)) as given, av.open(str(path), "w") as container:
        packets = [bytes(one) for one in given.demux(audio=0) if one.size]
        stream = container.add_stream("libmp3lame", rate=RATE, layout="mono")
        stream.codec_context.open()
        for i in range(60 * minutes * RATE // 576):
            packet = av.Packet(packets[i % len(packets)])
            packet.stream, packet.time_base = stream, Fraction(1, RATE)
            packet.pts = packet.dts = 576 * i
            packet.duration = 576
            container.mux(packet)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(("windows", "minutes"), [("sequential", 60), ("batched", 30)])
def test_an_hour_takes_the_memory_of_minutes(tmp_path, windows, minutes):
    """A window has thirty seconds here, as in published models."""
    model = tmp_path / "whisper"
    save_whisper(model, max_source_positions=1500)
    settings = json.loads((model / "preprocessor_config.json").read_text())
    settings |= {"chunk_length": 30, "n_samples": 480000, "nb_max_frames": 3000}
    (model / "preprocessor_config.json").write_text(json.dumps(settings))
    write_mp3(tmp_path / "hour.mp3", minutes)
    options = ["--language=en", "--timestamps=none", "--temperatures=0", "--max-length=8"]
    options += ["--width=1", "--format=srt", "--quiet", "--threads=1", f"--windows={windows}"]
    options += ["--no-speech-threshold=none", "--batch-size=4"]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(model), str(tmp_path / "hour.mp3"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as child:
        lines = [(time.monotonic(), line) for line in child.stdout if "-->" in line]
        errors = child.stderr.read()
    assert child.returncode == 0, errors
    assert len(lines) == 2 * minutes and lines[-1][1].startswith(f"00:{minutes - 1}:30,000 -->")
    assert lines[-1][0] - lines[0][0] > 1.0, "the segments came together"
    assert float(errors.splitlines()[-1]) < MOST_MEGABYTES
