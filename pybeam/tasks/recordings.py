"""Recordings as callers give them: names of files, open files, samples; one or several."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.speech import SoundFile, VoiceActivity, read_sound
from pybeam.speech.whisper import Recording

FLOATS = ("float16", "bfloat16", "float32", "float64")


def is_recording(given: Any) -> bool:
    """Whether this is one recording: the name of a file, an open one, or samples."""
    return isinstance(given, str | os.PathLike | np.ndarray | Tensor) or hasattr(given, "read")


def check_recording(given: Any) -> None:
    """Raise TypeError for what is no recording."""
    if not is_recording(given):
        raise TypeError(
            "`recordings` must be the name of a sound file, samples in an array or a tensor, or a list of "
            f"such, but there is {given!r}"
        )


def samples_of(recording: Any, sampling_rate: int) -> Tensor:
    """Return the samples [n] float32 of a recording.

    Raises:
        OSError, ValueError: it cannot be read, or the samples are no finite floats in a row.
    """
    if not isinstance(recording, Tensor | np.ndarray):
        return read_sound(recording, sampling_rate)
    samples = _tensor(recording)
    if samples.ndim != 1:
        raise ValueError(
            f"a recording must have samples [n], but has the shape {list(samples.shape)}; mix channels down, "
            "for example with `.mean(0)`"
        )
    if not samples.isfinite().all():
        raise ValueError("a recording must have finite samples, but holds NaN or infinities")
    return samples


def _tensor(samples: Tensor | np.ndarray) -> Tensor:
    """Return samples as a float32 tensor. Raises ValueError unless they are floats."""
    if str(samples.dtype).removeprefix("torch.") not in FLOATS:
        raise ValueError(
            f"samples must be floats from -1 to 1, but are {samples.dtype}; of 16-bit samples give "
            "`samples / 32768.0`"
        )
    # torch does not take arrays that run backwards
    return torch.as_tensor(
        samples if isinstance(samples, Tensor) else np.ascontiguousarray(samples),
        dtype=torch.float32,
    )


class Sounds:
    """Recordings as a `pybeam.Transcriber` takes them. They are read when their turn comes.

    Args:
        sampling_rate: of samples, in Hz.
        vad: whether the stretches are found in which somebody speaks.
    """

    def __init__(self, sampling_rate: int, vad: bool) -> None:
        self._rate = sampling_rate
        self._activity = VoiceActivity() if vad else None

    def __call__(self, given: Any) -> Recording:
        if isinstance(given, Recording):
            return given
        check_recording(given)
        is_samples = isinstance(given, Tensor | np.ndarray)
        try:
            sound = _tensor(given) if is_samples else SoundFile(given, self._rate)
            stretches = None if self._activity is None else self._activity(sound)
            return Recording(sound, stretches)
        except (OSError, ValueError) as error:
            return Recording(partial(_fail, error))


def is_one(given: Any) -> bool:
    """Whether this is one recording."""
    return is_recording(given) or isinstance(given, Recording)


def check_one(given: Any) -> None:
    """Raise TypeError for what is no recording."""
    if not isinstance(given, Recording):
        check_recording(given)


def _fail(error: Exception) -> Tensor:
    raise error
