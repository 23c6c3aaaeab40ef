"""Raw sound that comes in chunks: bytes or arrays, at any rate, as samples at a model's rate."""

from __future__ import annotations

import importlib
import wave
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from pybeam.arguments import ArgumentError, whole
from pybeam.speech.containers import RATES
from pybeam.speech.sound import INSTALL, NOT_WAV

Encoding = Literal["s16le", "f32le", "mulaw", "alaw"]
# what a number of each encoding is, as it stands in the bytes
TYPES = {"s16le": "<i2", "f32le": "<f4", "mulaw": "u1", "alaw": "u1"}
# blocks of a second that the resampler is given, whatever the chunks
BLOCKS_PER_SECOND = 50
# and of a WAV file that comes, so that nobody waits long for the rest of one
READS_PER_SECOND = 10


def wav_chunks(file: BinaryIO, name: str) -> tuple[int, Iterator[np.ndarray]]:
    """Read a WAV file while it comes, as from a pipe.

    Args:
        file: 16-bit PCM of any channels, which are mixed down. Its header may claim any length.
        name: of the file, for errors.

    Returns:
        The rate in Hz, and chunks of samples [n] float32.

    Raises:
        ValueError: it is no such file.
    """
    try:
        sound = wave.open(file, "rb")
    except NOT_WAV as error:
        problem = str(error) or "it ends too early"
        raise ValueError(f"{name} must be a WAV file with PCM samples: {problem}") from error
    rate, num_channels, width = sound.getframerate(), sound.getnchannels(), sound.getsampwidth()
    if width != 2:
        raise ValueError(f"{name} must have 16 bits per sample, but has {8 * width}")

    def chunks() -> Iterator[np.ndarray]:
        while content := sound.readframes(max(1, rate // READS_PER_SECOND)):
            whole = content[: len(content) // (2 * num_channels) * 2 * num_channels]
            samples = _floats(np.frombuffer(whole, "<i2"))
            yield samples.reshape(-1, num_channels).mean(1)

    return rate, chunks()


class Blocks:
    """Blocks of so many samples, of sound that comes in chunks of any sizes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting = np.zeros(0, np.float32)

    def more(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the blocks that are whole now."""
        waiting, size = np.concatenate((self._waiting, samples)), self._size
        num = len(waiting) // size
        self._waiting = waiting[num * size :].copy()
        for i in range(num):
            yield waiting[i * size : (i + 1) * size]

    def end(self) -> np.ndarray:
        """Return the samples that are left, fewer than a block."""
        return self._waiting


class RawSound:
    """Samples at a model's rate, of raw sound with one channel that comes in chunks.

    A chunk is bytes in the `encoding`, or an array or a tensor [n] of floats from -1 to 1 or of 16-bit
    integers. Any chunks of the same sound give the same samples to the bit; bytes may be cut within a sample.
    Another rate than the model's needs the package av.

    Args:
        sampling_rate: the rate of the samples, in Hz, such as a feature extractor's.
        rate: the rate of the chunks, in Hz; None: the same.
        encoding: of bytes: 16-bit integers ("s16le"), floats ("f32le"), or G.711 ("mulaw", "alaw"), as FFmpeg
            names them.

    Raises:
        ValueError: there is no such encoding or rate, or the package av is needed and missing.
    """

    def __init__(
        self, sampling_rate: int, rate: int | None = None, encoding: Encoding = "s16le"
    ) -> None:
        if encoding not in TYPES:
            names = ", ".join(get_args(Encoding))
            raise ArgumentError("encoding", f"must be one of {names}, but is {encoding!r}")
        rate = sampling_rate if rate is None else rate
        whole("rate", rate, RATES.start, RATES.stop - 1)
        self._type = np.dtype(TYPES[encoding])
        self._table = {"mulaw": _mulaw, "alaw": _alaw}.get(encoding, lambda: None)()
        self._rest = b""
        self._resample = None if rate == sampling_rate else _Resampler(rate, sampling_rate)

    def more(self, chunk: Any) -> Tensor:
        """Return the samples [m] float32 that this chunk completes.

        Raises:
            TypeError, ValueError: it is neither bytes nor an array [n], or its samples are not finite.
        """
        samples = self._samples(chunk)
        if not np.isfinite(samples).all():
            raise ValueError("a chunk must have finite samples, but has NaN or infinite ones")
        if self._resample is not None:
            samples = self._resample.more(samples)
        return torch.from_numpy(samples)

    def end(self) -> Tensor:
        """Return the samples [m] float32 that the resampler still has. Half a sample is dropped."""
        nothing = np.zeros(0, np.float32)
        return torch.from_numpy(nothing if self._resample is None else self._resample.end())

    def _samples(self, chunk: Any) -> np.ndarray:
        if isinstance(chunk, bytes | bytearray | memoryview):
            content = self._rest + bytes(chunk)
            size = len(content) // self._type.itemsize * self._type.itemsize
            self._rest = content[size:]
            found = np.frombuffer(content[:size], self._type)
            return _floats(found if self._table is None else self._table[found])
        found = chunk.detach().cpu().numpy() if isinstance(chunk, Tensor) else chunk
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "fi":
            kind = getattr(chunk, "dtype", type(chunk).__name__)
            raise TypeError(
                f"a chunk must be bytes, or an array of floats or of 16-bit integers, but is {kind}"
            )
        if found.ndim != 1 or (found.dtype.kind == "i" and found.dtype.itemsize != 2):
            raise ValueError(
                f"a chunk must have samples [n], floats or 16-bit integers, but has {found.dtype} "
                f"{list(found.shape)}; mix channels down, for example with `.mean(0)`"
            )
        return _floats(found)


class _Resampler:
    """FFmpeg's resampler, which is given blocks of one size."""

    def __init__(self, rate: int, sampling_rate: int) -> None:
        try:
            self._av = importlib.import_module("av")
        except ImportError as error:
            problem = f"must be {sampling_rate} without the package av: {INSTALL}"
            raise ArgumentError("rate", problem) from error
        self._rate = rate
        self._resampler = self._av.AudioResampler(format="flt", layout="mono", rate=sampling_rate)
        self._blocks = Blocks(max(1, rate // BLOCKS_PER_SECOND))

    def more(self, samples: np.ndarray) -> np.ndarray:
        found = [self._given(block) for block in self._blocks.more(samples)]
        return np.concatenate([np.zeros(0, np.float32), *found])

    def end(self) -> np.ndarray:
        return np.concatenate((self._given(self._blocks.end()), self._given(None)))

    def _given(self, block: np.ndarray | None) -> np.ndarray:
        frame = None
        if block is not None:
            if not len(block):
                return block
            frame = self._av.AudioFrame.from_ndarray(block[None], "flt", "mono")
            frame.sample_rate = self._rate
        parts = [one.to_ndarray()[0] for one in self._resampler.resample(frame)]
        return np.concatenate([np.zeros(0, np.float32), *parts])


def _floats(samples: np.ndarray) -> np.ndarray:
    floats = samples.astype(np.float32)
    if samples.dtype.kind == "i":
        floats /= 2.0**15
    return floats


def _mulaw() -> np.ndarray:
    """Return the 16-bit sample of each byte of G.711's mu-law."""
    code = ~np.arange(256) & 0xFF
    size = (((code & 0xF) << 3) + 0x84 << (code >> 4 & 7)) - 0x84
    return np.where(code & 0x80, -size, size).astype(np.int16)


def _alaw() -> np.ndarray:
    """Return the 16-bit sample of each byte of G.711's A-law."""
    code = np.arange(256) ^ 0x55
    exponent = code >> 4 & 7
    size = ((code & 0xF) << 4) + 8
    size = np.where(exponent > 0, size + 0x100 << np.maximum(exponent - 1, 0), size)
    return np.where(code & 0x80, size, -size).astype(np.int16)
