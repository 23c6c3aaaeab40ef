"""Raw sound in chunks: any cuts give the same samples, in any encoding and at any rate."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import torch

from pybeam.speech import RawSound
from support.sound_files import sine


def taken(sound: RawSound, chunks) -> torch.Tensor:
    return torch.cat([*map(sound.more, chunks), sound.end()])


def cut(whole, rng: np.random.Generator) -> list:
    """Cut anything that has slices into pieces of 0 to 2,000."""
    places = [0, *np.cumsum(rng.integers(0, 2000, 200) // rng.integers(1, 99, 200))]
    places = [int(place) for place in places if place < len(whole)]
    return [whole[a:b] for a, b in zip(places, [*places[1:], len(whole)], strict=True)]


@pytest.mark.parametrize("rate", [None, 8000, 24000, 44100])
@pytest.mark.parametrize("encoding", ["s16le", "f32le", "mulaw"])
def test_any_chunks_give_the_same_samples(rate, encoding):
    if rate is not None:
        pytest.importorskip("av")
    rng = np.random.default_rng(3)
    kind = {"s16le": "<i2", "f32le": "<f4", "mulaw": "u1"}[encoding]
    wave = sine(0.4, rate or 16000)
    whole = (wave * {"s16le": 2**15, "f32le": 1, "mulaw": 255}[encoding]).astype(kind).tobytes()
    expected = taken(RawSound(16000, rate, encoding), [whole])
    assert abs(len(expected) - 6400) <= 20
    for _ in range(3):
        chunks = cut(whole, rng)
        assert len(chunks) > 3
        assert torch.equal(taken(RawSound(16000, rate, encoding), chunks), expected)


def test_arrays_are_taken_as_they_are():
    wave = sine(0.1, 16000)
    for given in (wave, wave.astype(np.float32), torch.from_numpy(wave)):
        assert torch.equal(RawSound(16000).more(given), torch.from_numpy(wave).float())
    whole = (wave * 2**15).astype(np.int16)
    for given in (whole, whole.tobytes(), bytearray(whole.tobytes()), torch.from_numpy(whole)):
        assert torch.equal(RawSound(16000).more(given), torch.from_numpy(whole / 2**15).float())


def test_half_a_sample_waits_for_the_rest():
    sound = RawSound(16000)
    assert len(sound.more(b"\0")) == 0
    assert sound.more(b"\x40\0").tolist() == [0.5]
    # nothing follows the second half
    assert len(sound.end()) == 0


def test_a_tone_stays_a_tone_at_another_rate():
    pytest.importorskip("av")
    found = taken(RawSound(16000, 24000), [sine(0.5, 24000)])
    inner = slice(1000, 7000)
    expected = torch.from_numpy(sine(0.5, 16000)).float()
    torch.testing.assert_close(found[inner], expected[inner], atol=2e-3, rtol=0)


@pytest.mark.parametrize("law", ["mulaw", "alaw"])
def test_g711_is_that_of_ffmpeg(law):
    av = pytest.importorskip("av")
    every = bytes(range(256))
    codec = av.CodecContext.create(f"pcm_{law}", "r")
    codec.sample_rate, codec.layout = 8000, "mono"
    [frame] = codec.decode(av.Packet(every))
    found = RawSound(16000, encoding=law).more(every)
    assert found.tolist() == (frame.to_ndarray()[0] / 2**15).tolist()


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        ([0.0], "a chunk must be bytes, or an array of floats or of 16-bit integers, but is list"),
        (np.zeros(2, bool), "but is bool"),
        (np.zeros(2, np.int32), r"floats or 16-bit integers, but has int32 \[2\]"),
        (
            np.zeros((2, 3)),
            r"must have samples \[n\].* but has float64 \[2, 3\]; mix channels down",
        ),
        (np.array([0.0, np.nan]), "must have finite samples"),
    ],
)
def test_what_is_no_sound_is_refused(chunk, message):
    with pytest.raises((TypeError, ValueError), match=message):
        RawSound(16000).more(chunk)


def test_wrong_arguments_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="`encoding` must be one of s16le, f32le, mulaw, alaw"):
        RawSound(16000, encoding="mp3")
    with pytest.raises(ValueError, match="`rate` must be"):
        RawSound(16000, 10)
    importlib.import_module("pybeam.speech.pcm")
    monkeypatch.setitem(sys.modules, "av", None)
    RawSound(16000, 16000)
    with pytest.raises(ValueError, match="`rate` must be 16000 without the package av"):
        RawSound(16000, 24000)
