"""Recordings that are read in blocks: the same features, windows and transcripts as those in memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
import pytest
import torch

import pybeam
from pybeam.speech import LongFeatures, SoundFile, WhisperFeatureExtractor, read_sound
from support.sound_files import write_sound
from support.speech_models import tone, write_wav
from support.tiny_whisper import OPTIONS, transcribed

RATE = 16000


@pytest.mark.parametrize("num", [0, 1, 150, 401, 16000, 479_999, 480_000, 480_600, 1_440_321])
def test_features_do_not_depend_on_blocks(num):
    """To the bit, whatever the blocks, at the edges of groups of 3,000 frames and beside them."""
    extract = WhisperFeatureExtractor(num_mel_bins=8)
    samples = torch.from_numpy(tone(num, seed=num).astype(np.float32) / 2**15)
    groups = list(extract.log_mels([samples]))
    assert sum(map(len, groups)) == num // 160
    for size in (16000, 77_777, 160_000):
        blocks = [*samples.split(size), torch.zeros(0)]
        found = list(extract.log_mels(blocks))
        assert len(found) == len(groups)
        assert all(torch.equal(*pair) for pair in zip(found, groups, strict=True))


def test_windows_of_a_file(tmp_path):
    """In order, behind a gap, and back again."""
    extract = WhisperFeatureExtractor(num_mel_bins=8)
    samples = tone(70 * RATE, seed=3)
    write_wav(tmp_path / "a.wav", samples, RATE)
    long = LongFeatures(extract, SoundFile(tmp_path / "a.wav", RATE))
    whole = extract.recording(torch.from_numpy(samples.astype(np.float32) / 2**15))
    assert long.num_frames == len(whole) == 7000
    for start, end in ((0, 3000), (2990, 5990), (5990, 8990), (6999, 7000), (10, 20), (4000, 4001)):
        assert torch.equal(long.frames(start, end), whole[start:end])
    write_wav(tmp_path / "a.wav", samples[: 40 * RATE], RATE)
    long.close()
    with pytest.raises(ValueError, match=r"a\.wav has changed while it was read"):
        long.frames(3500, 5000)


def test_parts_of_a_file_may_be_read_side_by_side():
    """One thread asks while another is in the middle of the file."""
    extract, samples = WhisperFeatureExtractor(num_mel_bins=8), torch.rand(3 * RATE)
    is_read, goes_on = threading.Event(), threading.Event()

    class Slow:
        name = "slow"
        num_read = 0

        def blocks(self):
            self.num_read += 1
            if self.num_read > 1:
                is_read.set()
                assert goes_on.wait(20)
            yield samples

    long = LongFeatures(extract, Slow())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(long.frames, 0, 100)
        assert is_read.wait(20)
        second = pool.submit(long.frames, 100, 200)
        wait([second], 0.05)
        goes_on.set()
        whole = extract.recording(samples)
        assert torch.equal(first.result(20), whole[:100])
        assert torch.equal(second.result(20), whole[100:200])


@pytest.mark.thinned(most=1)
@pytest.mark.parametrize("windows", ["sequential", "batched"])
def test_a_file_gives_the_transcript_of_its_samples(model, directory, tmp_path, windows):
    write_sound(
        tmp_path / "a.mp3", tone(6 * 44100, seed=5)[None] / 2**15, 44100, codec="libmp3lame"
    )
    options = replace(OPTIONS, windows=windows, temperatures=(0.0,))
    samples = read_sound(tmp_path / "a.mp3", RATE)
    expected = transcribed(model, directory, [samples], options)
    recording = pybeam.Recording(SoundFile(tmp_path / "a.mp3", RATE))
    transcriber = pybeam.Transcriber(model, directory, options, schedule=pybeam.Fifo(3))
    *news, last = transcriber.stream([recording])
    assert [last.transcript] == expected and len(news) > 3
    # in the order of time, although windows of a batch are ready in any
    positions = [one.position for one in news]
    assert positions == sorted(set(positions))
    assert last.transcript.segments == tuple(s for one in news for s in one.segments)


def test_a_file_that_cannot_be_read_fails_alone(model, directory, tmp_path):
    write_wav(tmp_path / "a.wav", tone(2 * RATE, seed=1), RATE)
    write_wav(tmp_path / "b.wav", tone(2 * RATE, seed=1), RATE)
    content = (tmp_path / "b.wav").read_bytes()
    (tmp_path / "b.wav").write_bytes(content[:-900])
    files = [SoundFile(tmp_path / f"{name}.wav", RATE) for name in "abc"]
    news = list(pybeam.Transcriber(model, directory, OPTIONS).stream(files))
    errors = {one.index: str(one.error) for one in news if one.error is not None}
    assert sorted(errors) == [1, 2] and "b.wav" in errors[1] and "c.wav" in errors[2]
    assert [one.index for one in news if one.transcript is not None] == [0]
