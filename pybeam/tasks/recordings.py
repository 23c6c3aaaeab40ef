"""Recordings as callers give them: names of files, open files, samples; one or several."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.speech import SoundFile, VoiceActivity, read_sound
from pybeam.speech.whisper import Recording


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
    """Return the samples [n] float32 of a recording. Raises OSError or ValueError if it cannot be read."""
    if isinstance(recording, Tensor):
        return recording
    if isinstance(recording, np.ndarray):
        return torch.from_numpy(recording)
    return read_sound(recording, sampling_rate)


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
        sound = torch.as_tensor(given) if is_samples else SoundFile(given, self._rate)
        try:
            stretches = None if self._activity is None else self._activity(sound)
            return Recording(sound, stretches)
        except (OSError, ValueError) as error:
            return Recording(partial(_fail, error))


def is_one(given: Any) -> bool:
    """Whether this is one recording."""
    return is_recording(given) or isinstance(given, Recording)


def several(given: Any) -> Iterable[Any]:
    """Return several recordings. Raises TypeError for what is none; those of a list are looked at."""
    if isinstance(given, bytes | dict) or not isinstance(given, Iterable):
        check_recording(given)
    for one in given if isinstance(given, list | tuple) else ():
        if not isinstance(one, Recording):
            check_recording(one)
    return given


def _fail(error: Exception) -> Tensor:
    raise error
