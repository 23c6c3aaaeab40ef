"""Read sound files of any kind at a model's sampling rate, with the package av (FFmpeg's libraries)."""

from __future__ import annotations

import importlib
import os
import struct
import warnings
import wave
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from pybeam.speech.cut_files import why_cut
from pybeam.speech.features import LARGEST_WAV, read_wav

INSTALL = "`pip install 'pybeam-search[speech]'`"
# formats whose files say how long they are; of others the length is a guess
EXACT_LENGTHS = {"flac", "mov"}
# seconds by which such a length may be wrong
TOLERANCE = 0.5

NOT_WAV = (EOFError, RuntimeError, wave.Error)


def read_sound(
    source: str | os.PathLike[str] | BinaryIO,
    sampling_rate: int,
    *,
    max_seconds: float | None = None,
) -> Tensor:
    """Read samples [n] float32, from -1 to 1, from a sound file, or the sound of a film.

    WAV files with 16-bit samples, one channel and this rate are read as they are (`read_wav`). Anything else
    that FFmpeg knows is decoded, mixed down to one channel and resampled, which needs the package av. It
    takes the first of several sound tracks.

    Args:
        source: the file, or a binary stream with its content, which can seek.
        sampling_rate: the rate of the samples, in Hz, such as a feature extractor's.
        max_seconds: a longer recording is refused before all of it is decoded; None: no limit.

    Warns:
        UserWarning: it seems to be cut (MP3 with a header of its encoder, Ogg, Opus, Matroska, WebM). It is
            read up to there.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it has no sound, it is damaged, it is longer than `max_seconds`, or the package av is
            missing; or it is cut, as far as its format tells for certain (WAV, FLAC, MP4).
    """
    name = str(source) if isinstance(source, str | os.PathLike) else "the recording"
    plain_seconds = _plain_seconds(source, sampling_rate)
    if plain_seconds is not None:
        _check_most(name, plain_seconds, max_seconds)
        return read_wav(source, sampling_rate)
    try:
        av = importlib.import_module("av")
    except ImportError:
        return _refused(source, sampling_rate)
    given = os.fspath(source) if isinstance(source, str | os.PathLike) else source
    _check_wav(given, name)
    try:
        return _decoded(av, given, name, sampling_rate, max_seconds)
    # the resampler raises ValueError for a recording that changes its form on the way
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, _Damaged):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise _Damaged(f"{name} cannot be read as sound: {reason}") from error


def sound_seconds(path: str | os.PathLike[str]) -> float:
    """Return the seconds that a sound file says it has; 0.0 if it does not say so, or cannot be read.

    Args:
        path: the file.
    """
    try:
        with wave.open(os.fspath(path), "rb") as file:
            return file.getnframes() / file.getframerate()
    # the last one for a rate of 0 Hz
    except (OSError, *NOT_WAV, ZeroDivisionError):
        pass
    try:
        av = importlib.import_module("av")
    except ImportError:
        return 0.0
    try:
        with av.open(os.fspath(path), metadata_errors="ignore") as container:
            return float((container.duration or 0) / av.time_base)
    except (av.FFmpegError, ValueError):
        return 0.0


class _Damaged(ValueError):
    """Sound that cannot be read, with a message for the user."""


def _plain_seconds(source: str | os.PathLike[str] | BinaryIO, sampling_rate: int) -> float | None:
    """Return the length of a WAV file that `read_wav` takes; None: it is another.

    A stream is at its beginning afterwards.
    """
    given = os.fspath(source) if isinstance(source, str | os.PathLike) else source
    try:
        with wave.open(given, "rb") as file:
            form = file.getframerate(), file.getnchannels(), file.getsampwidth()
            return file.getnframes() / sampling_rate if form == (sampling_rate, 1, 2) else None
    except NOT_WAV:
        return None
    finally:
        if not isinstance(given, str):
            given.seek(0)


def _refused(source: str | os.PathLike[str] | BinaryIO, sampling_rate: int) -> Tensor:
    """Let `read_wav` say why it does not take the file, and how it could be read."""
    try:
        return read_wav(source, sampling_rate)
    except ValueError as error:
        raise ValueError(
            f"{error}; or let pybeam decode it, with the package av: {INSTALL}"
        ) from error


def _check_most(name: str, seconds: float, most: float | None) -> None:
    if most is not None and seconds > most:
        raise _Damaged(f"{name} must have at most {most:g} s of sound; cut it into parts")


def _decoded(
    av: Any, source: str | BinaryIO, name: str, sampling_rate: int, max_seconds: float | None
) -> Tensor:
    # a temporary file can be written, too, and would be
    with av.open(source, "r", metadata_errors="ignore") as container:
        if not container.streams.audio:
            raise _Damaged(f"{name} has no sound")
        stream = container.streams.audio[0]
        # 16-bit samples, as openai-whisper and faster-whisper take; FFmpeg mixes floats down too loud
        resampler = av.AudioResampler(format="s16", layout="mono", rate=sampling_rate)
        parts, num_samples = [np.zeros(0, np.int16)], 0
        for frame in _frames(container, stream, name):
            # gaps and jumps of its clock are no reason to refuse a recording
            frame.pts = None
            parts += [one.to_ndarray()[0] for one in resampler.resample(frame)]
            num_samples += parts[-1].size
            _check_most(name, num_samples / sampling_rate, max_seconds)
        parts += [one.to_ndarray()[0] for one in resampler.resample(None)]
        samples = np.concatenate(parts)
        # FFmpeg takes the beginning of a file that its name describes for a whole one
        if not samples.size:
            raise _Damaged(f"{name} has no sound, or is cut before it begins; fetch it again")
        seconds = len(samples) / sampling_rate
        _check_length(container.format.name, stream, name, seconds)
        reason = why_cut(container, stream, source, seconds)
    if reason is not None:
        warnings.warn(f"{name} seems to be cut: {reason}", stacklevel=3)
    return torch.from_numpy(samples.astype(np.float32) / 2.0**15)


def _frames(container: Any, stream: Any, name: str) -> Iterator[Any]:
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise _Damaged(f"{name} is damaged or cut; fetch it again")
        yield from packet.decode()


def _check_wav(source: str | BinaryIO, name: str) -> None:
    """Refuse a WAV file, of any codec, that ends before its samples do. FFmpeg takes what is there."""
    with open(source, "rb") if isinstance(source, str) else nullcontext(source) as file:
        kind = file.read(12)
        size = file.seek(0, os.SEEK_END)
        place = 12 if kind[:4] == b"RIFF" and kind[8:] == b"WAVE" else size
        while place < size:
            file.seek(place)
            chunk, num_bytes = struct.unpack("<4sI", file.read(8).ljust(8, b"\0"))
            # chunks begin at even places
            place += 8 + num_bytes + num_bytes % 2
            if chunk == b"data":
                if size < place - num_bytes % 2 and num_bytes < LARGEST_WAV:
                    raise _Damaged(f"{name} is cut; fetch it again")
                break
        file.seek(0)


def _check_length(form: str, stream: Any, name: str, seconds: float) -> None:
    if stream.duration is None or not EXACT_LENGTHS & set(form.split(",")):
        return
    expected = float(stream.duration * stream.time_base)
    if seconds < expected - TOLERANCE:
        raise _Damaged(
            f"{name} must have {expected:.1f} s, but ends after {seconds:.1f} s; fetch it again"
        )
