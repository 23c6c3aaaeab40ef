"""Recordings that another process decodes are those of this one, and whatever happens there is one error."""

from __future__ import annotations

import io
import os
import signal
import socket
import warnings
from pathlib import Path

import pytest
import torch

from pybeam.serving import sound_process
from pybeam.serving.sound_process import SoundProcesses
from pybeam.speech import SoundFile, read_sound
from support.served import wait_for
from support.sound_files import sine, write_sound

pytestmark = pytest.mark.skipif(
    not SoundProcesses.are_possible(), reason="needs Linux and the package av"
)
RATE = 16000
CODECS = {"a.wav": "pcm_s16le", "a.flac": "flac", "a.mp3": "libmp3lame", "a.m4a": "aac"}
CODECS |= {"a.ogg": "libopus", "a.mka": "alac", "a.caf": "pcm_s24be", "plain.wav": "pcm_s16le"}


@pytest.fixture
def processes():
    """They begin when they are asked, as copies of what a test has changed."""
    found = SoundProcesses()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("sounds")
    for name, codec in CODECS.items():
        rate = RATE if name == "plain.wav" else 48000
        # some are longer than a block
        seconds = 12.0 if name in ("a.flac", "a.ogg", "plain.wav") else 1.0
        write_sound(found / name, sine(seconds, rate)[None], rate, codec=codec)
    return found


def read(processes: SoundProcesses, path: Path, **options) -> torch.Tensor:
    with open(path, "rb") as file:
        return processes.sound(file, RATE, **{"max_seconds": 60, **options}).read()


@pytest.mark.slow
def test_the_samples_are_those_of_this_process(processes, folder):
    processes.start()
    for name in CODECS:
        expected = read_sound(folder / name, RATE)
        assert len(expected) > 0.9 * RATE
        assert torch.equal(read(processes, folder / name), expected), name


def test_errors_and_warnings_are_those_of_this_process(processes, folder, tmp_path):
    (tmp_path / "text").write_text("this is no sound\n" * 99)
    with pytest.raises(ValueError, match=r"the recording cannot be read as sound: .*must be WAV"):
        read(processes, tmp_path / "text")
    with pytest.raises(ValueError, match=r"must have at most 0\.5 s of sound"):
        read(processes, folder / "a.mp3", max_seconds=0.5)
    cut = folder / "a.ogg"
    (tmp_path / "cut.ogg").write_bytes(cut.read_bytes()[:-3000])
    with open(tmp_path / "cut.ogg", "rb") as file, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sound = processes.sound(file, RATE, max_seconds=60)
        for _ in range(2):
            sound.read()
    assert ["seems to be cut" in str(one.message) for one in found] == [True]


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def swell():
    io.BytesIO().write(bytes(1 << 29))


def hang():
    signal.pause()


def open_a_file():
    open("/etc/passwd").close()


def open_a_connection():
    socket.socket().close()


class Odd(SoundFile):
    """Does something when its content says so, in place of FFmpeg."""

    def blocks(self):
        with self._file() as file:
            what = file.read(20)
        yield torch.ones(3)
        if what in ODD:
            ODD[what]()
        yield torch.ones(4)


ODD = {one.__name__.encode(): one for one in (crash, swell, hang, open_a_file, open_a_connection)}


@pytest.fixture
def odd(processes, monkeypatch, tmp_path):
    monkeypatch.setattr(sound_process, "SoundFile", Odd)
    monkeypatch.setattr(sound_process, "BLOCK_SECONDS", 1.0)
    for name in (*ODD, b"nothing"):
        (tmp_path / name.decode()).write_bytes(name)
    processes.start()
    return processes


@pytest.mark.parametrize("name", ["crash", "swell", "hang"])
def test_a_decoder_that_crashes_swells_or_hangs_costs_its_recording(odd, tmp_path, name):
    with open(tmp_path / name, "rb") as file:
        blocks = odd.sound(file, RATE, max_seconds=60).blocks()
        assert len(next(blocks)) == 3
        # another recording is decoded beside it
        assert len(read(odd, tmp_path / "nothing")) == 7
        with pytest.raises(ValueError, match="its decoder crashed, or needed more than 256 MiB"):
            next(blocks)
    assert len(read(odd, tmp_path / "nothing")) == 7


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("name", ["open_a_file", "open_a_connection"])
def test_a_decoder_opens_no_file_and_no_connection(odd, tmp_path, name):
    with pytest.raises(ValueError, match="Too many open files"):
        read(odd, tmp_path / name)


def test_a_decoder_that_says_too_much_is_not_heard(odd, tmp_path, monkeypatch):
    monkeypatch.setattr(sound_process, "LARGEST_MESSAGE", 10)
    with pytest.raises(ValueError, match="its decoder crashed"):
        read(odd, tmp_path / "nothing")


def test_whoever_wants_no_more_leaves_no_process(processes, folder):
    with open(folder / "a.flac", "rb") as file:
        blocks = processes.sound(file, RATE, max_seconds=60).blocks()
        next(blocks)
        maker = processes._server._pid
        children = Path(f"/proc/{maker}/task/{maker}/children")
        assert children.read_text()
        blocks.close()
    wait_for(lambda: not children.read_text())


def test_a_recording_may_be_read_when_its_request_is_over(processes, folder):
    """A thread may read on; the number of the file must then not be that of another file."""
    with open(folder / "a.flac", "rb") as file:
        sound = processes.sound(file, RATE, max_seconds=60)
    with open(folder / "a.mp3", "rb"):
        assert torch.equal(sound.read(), read_sound(folder / "a.flac", RATE))
    number = sound._file_number
    del sound
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
