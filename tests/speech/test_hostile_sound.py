"""Uploads that are no sound: whatever their bytes say, no file and no connection is opened for them."""

from __future__ import annotations

import io
import resource
import signal
import struct
import subprocess
import sys
import zlib
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch

from pybeam.speech import SoundFile, read_sound, sound, sound_seconds
from support.paths import ROOT
from support.sealed_process import CAN_SEAL
from support.sound_files import write_sound

RATE = 16000
SDP = b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 45678 RTP/AVP 0\n"
HLS = b"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n%s\n#EXT-X-ENDLIST\n"
TEXTS = {
    "sdp": SDP,
    "hls-file": HLS % b"file:///etc/passwd",
    "hls-http": HLS % b"http://127.0.0.1:9/a.ts",
    "hls-neighbour": HLS % b"a.ts",
    "concat": b"ffconcat version 1.0\nfile neighbour.wav\n",
    "concat-http": b"ffconcat version 1.0\nfile 'http://127.0.0.1:9/a.wav'\n",
    "dash": b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
    b'mediaPresentationDuration="PT9S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period>'
    b'<AdaptationSet mimeType="audio/mp4"><Representation id="1" bandwidth="9"><BaseURL>'
    b"http://127.0.0.1:9/a.mp4</BaseURL></Representation></AdaptationSet></Period></MPD>",
    "imf": b'<?xml version="1.0"?><CompositionPlaylist xmlns="http://www.smpte-ra.org/schemas/2067-3/2016">'
    b"<Id>urn:uuid:1</Id></CompositionPlaylist>",
    "smooth": b'<SmoothStreamingMedia MajorVersion="2" Duration="9"></SmoothStreamingMedia>',
    "rtsp": b"RTSP/1.0 200 OK\r\nContent-Type: application/sdp\r\n\r\n" + SDP,
    "rtsp-address": b"rtsp://127.0.0.1:9/a",
    "sap": b"\x20\0\0\0\x7f\0\0\1application/sdp\0" + SDP,
    "image-pattern": b"/etc/%03d.png\n",
    "data": b"data:audio/wav;base64,UklGRiQAAABXQVZF",
    "vobsub": b"# VobSub index file, v7 (do not modify this line!)\nid: en, index: 0\n"
    b"timestamp: 00:00:01:000, filepos: 000000000\n",
    "subtitles": b"WEBVTT\n\n00:00.000 --> 00:01.000\nfile:///etc/passwd\n",
    "filter": b"amovie=/etc/passwd",
    "protocols": b"concat:/etc/passwd|/etc/group",
}
# reads what lies in a folder, sealed, with `how`
PROGRAM = """
import io, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from support.sealed_process import seal
files = [(path.name, path.read_bytes()) for path in sorted(Path({folder!r}).iterdir())]
{how}
def tried(name, content):
    try:
        read(io.BytesIO(content))
    except (ValueError, OSError) as error:
        return str(error)
    return "read"
# what is imported late comes before
for name, content in files:
    if name.startswith("sound") or name == "text":
        tried(name, content)
seal()
for name, content in files:
    print(name, tried(name, content), flush=True)
"""
OURS = "from pybeam.speech import read_sound\ndef read(file): read_sound(file, 16000)"
FFMPEG = "import av\ndef read(file): av.open(file, timeout=5)"


def referring(path: Path) -> bytes:
    """Make a QuickTime file whose samples lie in another file, by its path and as an alias."""
    content = path.read_bytes()
    place = content.index(b"dref")
    [size] = struct.unpack(">I", content[place - 4 : place])
    target = b"/etc/passwd\0"
    alias = bytes(10) + b"\0" + bytes(27 + 12) + b"\0" + bytes(63 + 16)
    alias += struct.pack(">HH", 1, 1) + bytes(16)
    alias += struct.pack(">HH", 2, len(target)) + target + struct.pack(">h", -1) + bytes(40)
    entries = b""
    for kind, data in ((b"alis", alias), (b"url ", b"file://" + target)):
        entries += struct.pack(">I4sI", 12 + len(data), kind, 0) + data
    box = struct.pack(">I4sII", 16 + len(entries), b"dref", 0, 2) + entries
    spoilt = bytearray(content[: place - 4] + box + content[place - 4 + size :])
    grown = len(box) - size
    for name in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
        at = spoilt.index(name) - 4
        [old] = struct.unpack(">I", spoilt[at : at + 4])
        spoilt[at : at + 4] = struct.pack(">I", old + grown)
    return bytes(spoilt)


def run_sealed(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), str(ROOT / "tests")]
    program = PROGRAM.format(paths=paths, folder=str(folder), how=how)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    for name, codec in (("sound.flac", "flac"), ("sound.mp3", "libmp3lame"), ("sound.mov", "aac")):
        write_sound(folder / name, codec=codec)
    return folder


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_name_others_are_no_sound(name):
    with pytest.raises(ValueError, match=r"the recording cannot be read as sound: .*must be WAV"):
        read_sound(io.BytesIO(TEXTS[name]), RATE)


@pytest.mark.slow
@pytest.mark.skipif(not CAN_SEAL, reason="system calls are watched on Linux with x86-64 alone")
def test_no_byte_opens_a_file_or_a_connection(good, tmp_path):
    for name, content in TEXTS.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "text").write_text("this is no sound\n" * 200)
    (tmp_path / "drefs.mov").write_bytes(referring(good / "sound.mov"))
    for path in good.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    done = run_sealed(tmp_path, OURS)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr[-2000:])
    assert told.keys() == {path.name for path in tmp_path.iterdir()}
    assert {name for name, what in told.items() if what == "read"} - {"drefs.mov"} == {
        path.name for path in good.iterdir()
    }


@pytest.mark.skipif(not CAN_SEAL, reason="system calls are watched on Linux with x86-64 alone")
@pytest.mark.parametrize("name", ["sdp", "concat"])
def test_the_seal_would_find_it(tmp_path, name):
    """With FFmpeg's own choice of a format the same bytes do open something, and the process ends."""
    (tmp_path / name).write_bytes(TEXTS[name])
    assert run_sealed(tmp_path, FFMPEG).returncode == -signal.SIGSYS


def test_a_name_is_a_file_and_no_address():
    for name in (
        "http://127.0.0.1:9/a.mp3",
        "concat:a.wav|b.wav",
        "data:audio/wav;base64,UklGRg==",
    ):
        with pytest.raises(FileNotFoundError):
            read_sound(name, RATE)
        assert sound_seconds(name) == 0.0


def test_only_sound_of_known_codecs_is_decoded(tmp_path):
    write_sound(tmp_path / "a.mkv", codec="wavpack")
    with pytest.raises(ValueError, match=r"a.mkv must have sound of a codec .* but has wavpack"):
        read_sound(tmp_path / "a.mkv", RATE)
    write_sound(tmp_path / "a.avi", codec="libmp3lame")
    with pytest.raises(ValueError, match=r"a.avi cannot be read as sound: .*must be WAV, W64"):
        read_sound(tmp_path / "a.avi", RATE)


class Counted(io.BytesIO):
    """A file that knows how much of it was read."""

    num_read = 0

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self.num_read += len(content)
        return content


def silence(seconds: int) -> bytes:
    """Return Opus of which each byte but the container's is 120 ms of silence."""
    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=48000, layout="mono")
        stream.codec_context.open()
        for i in range(round(seconds / 0.12)):
            # two frames of 60 ms that were not sent
            packet = av.Packet(b"\x19")
            packet.stream, packet.time_base = stream, Fraction(1, 48000)
            packet.pts = packet.dts = 5760 * i
            packet.duration = 5760
            container.mux(packet)
    return file.getvalue()


def test_the_bound_holds_while_the_file_is_decoded():
    content = silence(3 * 3600)
    assert len(content) < 500_000
    file = Counted(content)
    with pytest.raises(ValueError, match="must have at most 60 s of sound"):
        for block in SoundFile(file, RATE, max_seconds=60).blocks():
            assert len(block) < 12 * RATE
    assert file.num_read < len(content) / 2


def test_a_frame_cannot_become_hours(tmp_path):
    write_sound(tmp_path / "a.wav", codec="pcm_u8", rate=8000)
    content = bytearray((tmp_path / "a.wav").read_bytes())
    place = content.index(b"fmt ") + 12
    content[place : place + 4] = struct.pack("<I", 1)
    with pytest.raises(ValueError, match=r"must have 1000 to 768000 Hz .* but has 1 Hz and 1"):
        read_sound(io.BytesIO(content), RATE)


def test_packets_without_sound_end_somewhere(tmp_path, monkeypatch):
    write_sound(tmp_path / "a.mp3", codec="libmp3lame")
    monkeypatch.setattr(sound, "EMPTY_PACKETS", 2)
    monkeypatch.setattr(sound, "MOST_PACKETS", 10)
    with pytest.raises(
        ValueError, match=r"a.mp3 must have at most 10 packets in a second of sound"
    ):
        read_sound(tmp_path / "a.mp3", RATE)


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    path = tmp_path_factory.mktemp("film") / "a.m4a"
    write_sound(path, codec="aac")
    return path.read_bytes()


def with_numbers(content: bytes, table: bytes, skip: int, *numbers: int) -> bytes:
    """Put other numbers into a table of a film."""
    place = content.index(table) + 4 + skip
    packed = struct.pack(f">{len(numbers)}I", *numbers)
    return content[:place] + packed + content[place + len(packed) :]


def fragments(num: int) -> bytes:
    """Return fragments that say they have `num` samples."""
    run = struct.pack(">I4sII", 16, b"trun", 0, num)
    track = struct.pack(">I4s", 8 + len(run), b"traf") + run
    return struct.pack(">I4s", 8 + len(track), b"moof") + track


@pytest.mark.parametrize("num", [9_000, 40_000_000, (1 << 32) - 1])
def test_a_film_lists_no_more_than_it_has(film, num):
    """FFmpeg makes a list of all samples when it opens a file: gigabytes of a few kilobytes."""
    assert len(read_sound(io.BytesIO(film), RATE)) > RATE
    constant = with_numbers(film, b"stsz", 4, 1, num)
    listed = with_numbers(with_numbers(constant, b"stsc", 8, 1, num), b"stts", 8, num)
    chunks = with_numbers(film, b"stsc", 8, 1, num)
    edited = with_numbers(film, b"elst", 4, num)
    packed = film.replace(b"free", b"cmov")
    late = struct.pack(">I4s", 16, b"free") + bytes(8) + listed
    for content in (constant, listed, chunks, film + fragments(num), packed, late):
        with pytest.raises(ValueError, match="must list no more samples than it has"):
            read_sound(io.BytesIO(content), RATE)
    if num > 1 << 23:
        with pytest.raises(ValueError, match="must list no more samples than it has"):
            read_sound(io.BytesIO(edited), RATE)
    # FFmpeg would find the film behind a box of another kind
    hidden = struct.pack(">I4s", 16, b"uuid") + bytes(8) + listed
    with pytest.raises(ValueError, match="cannot be read as sound"):
        read_sound(io.BytesIO(hidden), RATE)


def tag(name: bytes, num_bytes: int) -> bytes:
    """Return an ID3 tag with a compressed frame, which becomes so many bytes."""

    def size(num: int) -> bytes:
        return bytes((num >> shift) & 127 for shift in (21, 14, 7, 0))

    data = size(num_bytes) + zlib.compress(b"\x03" + bytes(num_bytes - 1), 9)
    frame = name + size(len(data)) + b"\0\x09" + data
    return b"ID3\x04\0\0" + size(len(frame)) + frame


@pytest.mark.parametrize("name", ["a.mp3", "a.flac", "a.aac"])
def test_tags_are_not_unpacked(tmp_path, name):
    """They are skipped, one or several, and refused between frames."""
    codec = {"a.mp3": "libmp3lame", "a.flac": "flac", "a.aac": "aac"}[name]
    write_sound(tmp_path / name, codec=codec)
    content = (tmp_path / name).read_bytes()
    expected = read_sound(io.BytesIO(content), RATE)
    bombs = tag(b"TIT2", 1 << 24) + tag(b"PRIV", 1 << 24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read_sound(io.BytesIO(bombs + content), RATE)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
    assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="must have at most 16 ID3 tags"):
        read_sound(io.BytesIO(tag(b"TIT2", 9) * 17 + content), RATE)
    if name == "a.aac":
        with pytest.raises(ValueError, match="must have ID3 tags of at most 65536 bytes"):
            inner = b"ID3\x04\0\0\0\x05\0\0" + bytes(5 << 14)
            read_sound(io.BytesIO(content + inner + content), RATE)
