"""Sound files of many kinds, beside the samples that were written into them."""

import io
import sys
import warnings
import wave

import av
import numpy as np
import pytest
import torch

from pybeam.speech import SoundFile, read_sound, read_wav, sound_seconds
from support.sound_files import sine, write_sound
from support.speech_models import tone, write_wav

RATE = 16000


def likeness(found: torch.Tensor, expected: np.ndarray) -> float:
    """The greatest correlation of the two within a period of the sine, as codecs delay."""
    middle = expected[4000:20000]
    return max(np.corrcoef(found[4000 + i : 20000 + i], middle)[0, 1] for i in range(40))


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [
        ("a.wav", "pcm_s16le", 44100),
        ("a.wav", "pcm_f32le", 16000),
        ("a.wav", "pcm_s24le", 8000),
        ("a.flac", "flac", 48000),
        ("a.mp3", "libmp3lame", 44100),
        ("a.ogg", "libopus", 48000),
        ("a.opus", "libopus", 48000),
        ("a.m4a", "aac", 22050),
        ("a.mkv", "aac", 44100),
    ],
)
def test_any_kind_is_read(tmp_path, name, codec, rate):
    """The left channel has the sine, the right one nothing: the mean of both is half of it."""
    samples = sine(1.5, rate)
    path = tmp_path / name
    write_sound(path, np.stack([samples, np.zeros_like(samples)]), rate, codec=codec)
    found = read_sound(path, RATE)
    assert found.dtype == torch.float32 and abs(len(found) / RATE - 1.5) < 0.1
    assert likeness(found, sine(1.5, RATE)) > 0.99
    assert float(found[4000:12000].abs().max()) == pytest.approx(0.25, rel=0.1)
    assert torch.equal(read_sound(io.BytesIO(path.read_bytes()), RATE), found)
    assert sound_seconds(path) == pytest.approx(1.5, abs=0.1)


def test_plain_wav_files_are_read_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    path = tmp_path / "a.wav"
    write_wav(path, tone(500, seed=3), 8000)
    assert torch.equal(read_sound(path, 8000), read_wav(path, 8000))
    assert torch.equal(read_sound(io.BytesIO(path.read_bytes()), 8000), read_wav(path, 8000))
    assert sound_seconds(path) == 500 / 8000
    with pytest.raises(ValueError, match=r"8000; convert it: `ffmpeg.*package av: `pip install"):
        read_sound(path, 16000)
    assert sound_seconds(tmp_path / "none.mp3") == 0.0


def test_the_same_rate_and_one_channel_change_no_sample(tmp_path):
    """FFmpeg's path gives the numbers of the other one."""
    samples = tone(5000, seed=4)
    write_wav(tmp_path / "a.wav", samples, RATE)
    write_sound(tmp_path / "a.flac", samples[None] / 2.0**15, RATE, codec="flac")
    assert torch.equal(read_sound(tmp_path / "a.flac", RATE), read_wav(tmp_path / "a.wav", RATE))


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.wav", "pcm_s16le"), ("a.flac", "flac"), ("a.m4a", "aac")],
)
@pytest.mark.parametrize("rate", [16000, 44100])
def test_a_cut_file_is_refused_by_name(tmp_path, name, codec, rate):
    path = tmp_path / name
    write_sound(path, np.stack([sine(4.0, rate)]), rate, codec=codec)
    assert len(read_sound(path, RATE)) == pytest.approx(4 * RATE, abs=0.1 * RATE)
    content = path.read_bytes()
    for share in (0.3, 0.5001, 0.7):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(ValueError, match=name):
            read_sound(path, RATE)


@pytest.mark.parametrize(
    ("name", "codec", "reason"),
    [
        ("a.mp3", "libmp3lame", "says that it has 4.0 s, but ends after"),
        ("a.ogg", "libopus", "its last page is missing"),
        ("a.opus", "libopus", "its last page is missing"),
        ("a.mkv", "aac", "says that it has 4.0 s, but ends after"),
    ],
)
def test_a_cut_file_of_other_kinds_is_read_with_a_warning(tmp_path, name, codec, reason):
    path = tmp_path / name
    write_sound(path, np.stack([sine(4.0, 48000)]), 48000, codec=codec)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = read_sound(path, RATE)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for source in (path, io.BytesIO(path.read_bytes())):
        with pytest.warns(
            UserWarning, match=f"{name if source is path else 'the recording'}.*{reason}"
        ):
            found = read_sound(source, RATE)
        assert 0.2 * len(whole) < len(found) < 0.8 * len(whole)


@pytest.mark.parametrize(("name", "codec"), [("a.wav", "pcm_s16le"), ("a.flac", "flac")])
@pytest.mark.parametrize("rate", [RATE, 44100])
def test_a_long_recording_is_refused(tmp_path, name, codec, rate):
    path = tmp_path / name
    write_sound(path, np.stack([sine(4.0, rate)]), rate, codec=codec)
    assert len(read_sound(path, RATE, max_seconds=4.1)) == pytest.approx(4 * RATE, abs=0.1 * RATE)
    with pytest.raises(ValueError, match=f"{name} must have at most 3.5 s of sound; cut it"):
        read_sound(path, RATE, max_seconds=3.5)


@pytest.mark.parametrize(("name", "codec"), [("a.wav", "pcm_s24le"), ("a.flac", "flac")])
def test_a_file_that_is_cut_between_packets_is_refused(tmp_path, name, codec):
    """No packet is damaged then, and FFmpeg takes what is there."""
    path = tmp_path / name
    write_sound(path, np.stack([sine(4.0, 48000)]), 48000, codec=codec)
    with av.open(str(path)) as container:
        packets = container.demux(container.streams.audio[0])
        ends = [packet.pos + packet.size for packet in packets if packet.size]
    path.write_bytes(path.read_bytes()[: ends[len(ends) // 2]])
    for source in (path, io.BytesIO(path.read_bytes())):
        with pytest.raises(ValueError, match=name if source is path else "the recording"):
            read_sound(source, RATE)


def test_what_is_no_sound_is_refused(tmp_path):
    text, empty = tmp_path / "a.mp3", tmp_path / "b.mp3"
    text.write_text("this is no sound\n" * 200)
    empty.touch()
    for path in (text, empty):
        with pytest.raises(ValueError, match=f"{path.name} cannot be read as sound"):
            read_sound(path, RATE)
        assert sound_seconds(path) == 0.0
    with pytest.raises(ValueError, match="the recording cannot be read as sound"):
        read_sound(io.BytesIO(b"no sound"), RATE)
    with pytest.raises(FileNotFoundError):
        read_sound(tmp_path / "none.mp3", RATE)
    with pytest.raises(IsADirectoryError):
        read_sound(tmp_path, RATE)


def test_a_wav_file_from_a_pipe_claims_a_size_that_nobody_knew(tmp_path):
    samples = tone(700, seed=5)
    write_wav(tmp_path / "a.wav", samples, RATE)
    content = bytearray((tmp_path / "a.wav").read_bytes())
    content[4:8] = content[40:44] = b"\xff\xff\xff\xff"
    (tmp_path / "a.wav").write_bytes(content)
    assert len(read_sound(tmp_path / "a.wav", RATE)) == 700


def test_a_stream_stays_open(tmp_path):
    write_wav(tmp_path / "a.wav", tone(700, seed=5), RATE)
    with (tmp_path / "a.wav").open("rb") as file:
        read_sound(file, RATE)
        assert not file.closed
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getnframes() == 700


def test_channels_are_mixed_or_apart(tmp_path):
    left, right = tone(4000, 1), tone(4000, 2)
    path = tmp_path / "a.wav"
    write_wav(path, np.stack([left, right], 1).ravel(), 16000, channels=2)
    found = read_sound(path, 16000, channels=2)
    expected = torch.from_numpy(np.stack([left, right], 1).astype(np.float32) / 2**15)
    assert torch.equal(found, expected)
    assert torch.allclose(read_sound(path, 16000), expected.mean(1), atol=1e-4)
    with pytest.raises(ValueError, match="`channels` must be 1 or 2, but is 3"):
        SoundFile(path, 16000, channels=3)
