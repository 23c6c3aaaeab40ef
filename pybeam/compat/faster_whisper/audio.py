"""Recordings as faster-whisper takes them: files, streams, and samples in NumPy's arrays."""

from __future__ import annotations

import os
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from pybeam.speech.sound import read_sound

Audio = str | os.PathLike[str] | BinaryIO | np.ndarray


def decode_audio(
    input_file: str | os.PathLike[str] | BinaryIO,
    sampling_rate: int = 16000,
    split_stereo: bool = False,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Return the samples [n] float32 of a file, or those of its left and its right channel.

    Args:
        input_file: the file, or a binary stream with its content.
        sampling_rate: of the samples, in Hz.
        split_stereo: whether channels come apart.

    Raises:
        OSError, ValueError: it cannot be read; see `pybeam.speech.read_sound`.
    """
    if not split_stereo:
        return read_sound(input_file, sampling_rate).numpy()
    left, right = read_sound(input_file, sampling_rate, channels=2).t().contiguous().numpy()
    return left, right


def samples_of(audio: Audio | Tensor, sampling_rate: int) -> np.ndarray:
    """Return the samples [n] float32 of a recording.

    Raises:
        TypeError, ValueError: it has channels, or no floats; or see `decode_audio`.
    """
    if isinstance(audio, Tensor):
        audio = audio.numpy(force=True)
    if not isinstance(audio, np.ndarray):
        return read_sound(audio, sampling_rate).numpy()
    if audio.dtype.kind != "f":
        raise TypeError(
            f"`audio` must hold floats from -1 to 1, but holds {audio.dtype}; divide 16-bit samples by 32768"
        )
    if audio.ndim != 1:
        raise ValueError(
            f"`audio` must have samples [n], but has the shape {list(audio.shape)}; mix channels down"
        )
    return audio.astype(np.float32, copy=False)


def as_tensor(samples: np.ndarray) -> Tensor:
    """Return samples as torch has them; arrays that may not be written are copied."""
    return torch.from_numpy(samples if samples.flags.writeable else samples.copy())
