"""Read plain WAV files with Python's own `wave`, a little at a time."""

from __future__ import annotations

import os
import wave
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

# bytes of samples; a size from here on stands for one that is not known
LARGEST_WAV = 0x7FFF0000
FRAMES_AT_ONCE = 1 << 18
# what `wave` raises for a file that is none, or is damaged; RuntimeError: a part ends behind the file
NOT_WAV = (EOFError, RuntimeError, wave.Error)


def read_wav(path: str | os.PathLike[str] | BinaryIO, sampling_rate: int) -> Tensor:
    """Read samples [n] float32, from -1 to 1, from a WAV file: 16-bit PCM, one channel, at this rate.

    Args:
        path: the file, or a binary stream with its content.
        sampling_rate: the rate that it must have, in Hz, such as a feature extractor's.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file.
    """
    return torch.cat([torch.zeros(0), *wav_blocks(path, sampling_rate)])


def wav_blocks(
    path: str | os.PathLike[str] | BinaryIO, sampling_rate: int, name: str | None = None
) -> Iterator[Tensor]:
    """Yield the samples that `read_wav` reads, a block [n] at a time; `name` is that of a stream.

    Raises:
        OSError, ValueError: see `read_wav`. A file that is cut is refused behind its last block.
    """
    source = str(path) if isinstance(path, str | os.PathLike) else path
    name = name or (source if isinstance(source, str) else "the recording")
    given = "in.wav" if name == "the recording" else name
    remedy = f"convert it: `ffmpeg -i {given} -ar {sampling_rate} -ac 1 -c:a pcm_s16le out.wav`"
    num_bytes = 0
    try:
        with wave.open(source, "rb") as file:
            found = file.getframerate(), file.getnchannels(), 8 * file.getsampwidth()
            _check(name, found, (sampling_rate, 1, 16), remedy)
            num_frames = file.getnframes()
            # that number may be far too large
            while block := file.readframes(FRAMES_AT_ONCE):
                num_bytes += len(block)
                whole = block[: len(block) // 2 * 2]
                yield torch.from_numpy(
                    np.frombuffer(whole, dtype="<i2").astype(np.float32) / 2.0**15
                )
    # some of these errors have no message
    except NOT_WAV as error:
        raise ValueError(
            f"{name} must be a WAV file with PCM samples: {str(error) or 'it ends too early'}; {remedy}"
        ) from error
    # a program that writes into a pipe claims the largest size
    if num_bytes < 2 * num_frames < LARGEST_WAV:
        raise ValueError(
            f"{name} must have {num_frames} samples, but ends after {num_bytes // 2}; fetch it again"
        )


def _check(name: str, found: tuple[int, ...], expected: tuple[int, ...], remedy: str) -> None:
    names = ("Hz", "channels", "bits per sample")
    for value, wanted, unit in zip(found, expected, names, strict=True):
        if value != wanted:
            raise ValueError(f"{name} must have {wanted} {unit}, but has {value}; {remedy}")
