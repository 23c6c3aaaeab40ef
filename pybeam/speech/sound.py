"""Read sound files at a model's sampling rate: plain WAV, and many kinds with the package av (FFmpeg)."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import warnings
import wave
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.speech.containers import Damaged, check_form, opened, reason_of, sound_of
from pybeam.speech.truncation import LARGEST_WAV, check_wav, why_cut

INSTALL = "`pip install 'pybeam-search[speech]'`"
# seconds of a recording, unless the caller says otherwise: a small file may hold years of silence
DAY = 86400.0
BLOCK_SECONDS = 10
LAYOUTS = {1: "mono", 2: "stereo"}
# no codec cuts a second into more packets; some that hold nothing are forgiven
MOST_PACKETS, EMPTY_PACKETS = 3000, 10_000
# of a plain WAV file
FRAMES_AT_ONCE = 1 << 18
# what `wave` raises for a file that is none, or is damaged; RuntimeError: a part ends behind the file
NOT_WAV = (EOFError, RuntimeError, wave.Error)


class SoundFile:
    """A sound file, or the sound of a film, that is read a block at a time: its length costs no memory.

    WAV files with 16-bit samples, one channel and this rate are read as they are (`read_wav`). Other WAV
    files, W64, AU, CAF, FLAC, MP3, AAC, AMR, Ogg, MP4, MOV, Matroska and WebM are decoded, mixed down
    to one channel and resampled, which needs the package av. It takes the first of several sound tracks.
    Whatever is in a file, no other file and no connection is opened for it.

    Args:
        source: the file, or a binary stream with its content, which can seek. Nobody else may use the stream
            meanwhile.
        sampling_rate: the rate of the samples, in Hz, such as a feature extractor's.
        max_seconds: a longer recording is refused once this much of it is decoded; None: no limit.
        channels: 1, or 2 for left and right, which the package av decodes.
        warn: is told once if the file seems to be cut; None: Python's warnings.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        sampling_rate: int,
        *,
        max_seconds: float | None = DAY,
        channels: Literal[1, 2] = 1,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        if channels not in LAYOUTS:
            raise ArgumentError("channels", f"must be 1 or 2, but is {channels!r}")
        self._channels = channels
        self._source, self.sampling_rate, self._max_seconds = source, sampling_rate, max_seconds
        self.name = "the recording"
        if isinstance(source, str | os.PathLike):
            self.name = os.fspath(source)
        self._warn: Callable[[str], None] | None = warn or warnings.warn

    def blocks(self) -> Iterator[Tensor]:
        """Yield the samples [n] float32, from -1 to 1, some seconds at a time. Each call begins anew.

        With two channels they are [n, 2].

        Raises:
            OSError: the file cannot be opened.
            ValueError: it has no sound, it is damaged, it is longer than `max_seconds`, or the package av is
                missing; or it is cut, as far as its format tells for certain (WAV, FLAC, MP4), which is known
                behind the last block.
        """
        with self._file() as file:
            if self._channels == 1 and _is_plain(file, self.sampling_rate):
                yield from self._bounded(wav_blocks(file, self.sampling_rate, self.name))
                return
            try:
                av = importlib.import_module("av")
            except ImportError:
                yield from self._refused(file)
                return
            check_wav(file, self.name)
            try:
                yield from self._decoded(av, file)
            except Damaged:
                raise
            # the resampler raises ValueError for a recording that changes its form on the way
            except (av.FFmpegError, ValueError) as error:
                raise Damaged(f"{self.name} cannot be read as sound: {reason_of(error)}") from error

    def read(self) -> Tensor:
        """Return the samples of all blocks, [n] or [n, 2]. Raises what `blocks` does."""
        nothing = torch.zeros(0) if self._channels == 1 else torch.zeros(0, self._channels)
        return torch.cat([nothing, *self.blocks()])

    def _file(self) -> contextlib.AbstractContextManager[BinaryIO]:
        if isinstance(self._source, str | os.PathLike):
            return open(self._source, "rb")
        self._source.seek(0)
        return nullcontext(self._source)

    def _bounded(self, blocks: Iterable[Tensor]) -> Iterator[Tensor]:
        num_samples = 0
        for block in blocks:
            num_samples += len(block)
            self._check_most(num_samples / self.sampling_rate)
            yield block

    def _check_most(self, seconds: float) -> None:
        if self._max_seconds is not None and seconds > self._max_seconds:
            raise Damaged(
                f"{self.name} must have at most {self._max_seconds:g} s of sound; cut it into parts"
            )

    def _refused(self, file: BinaryIO) -> Iterator[Tensor]:
        """Let `wav_blocks` say why it does not take the file, and how it could be read."""
        try:
            yield from wav_blocks(file, self.sampling_rate, self.name)
        except ValueError as error:
            raise ValueError(
                f"{error}; or let pybeam decode it, with the package av: {INSTALL}"
            ) from error

    def _decoded(self, av: Any, file: BinaryIO) -> Iterator[Tensor]:
        rate, layout, num_samples = self.sampling_rate, LAYOUTS[self._channels], 0
        with opened(av, file, self.name) as container:
            stream = sound_of(container, self.name)
            frames = self._frames(container, stream)
            for block in _gathered(_resampled(av, frames, rate, layout), rate):
                num_samples += len(block)
                yield block
            # FFmpeg takes the beginning of a file that its name describes for a whole one
            if not num_samples:
                raise Damaged(
                    f"{self.name} has no sound, or is cut before it begins; fetch it again"
                )
            reason = why_cut(container, stream, file, self.name, num_samples / rate)
        if reason is not None and self._warn is not None:
            self._warn(f"{self.name} seems to be cut: {reason}")
        self._warn = None

    def _frames(self, container: Any, stream: Any) -> Iterator[Any]:
        num_packets = num_samples = 0
        seconds = 0.0
        for packet in container.demux(stream):
            if packet.is_corrupt:
                raise Damaged(f"{self.name} is damaged or cut; fetch it again")
            num_packets += 1
            if num_packets > MOST_PACKETS * seconds + EMPTY_PACKETS:
                raise Damaged(
                    f"{self.name} must have at most {MOST_PACKETS} packets in a second of sound, but has "
                    f"{num_packets} in {seconds:.1f} s"
                )
            for frame in packet.decode():
                if not num_samples:
                    check_form(frame, self.name)
                # before it is resampled, when it is small still
                num_samples += frame.samples
                seconds = num_samples / frame.sample_rate
                self._check_most(seconds)
                yield frame


def _resampled(av: Any, frames: Iterable[Any], rate: int, layout: str) -> Iterator[np.ndarray]:
    # 16-bit samples, as openai-whisper and faster-whisper take; FFmpeg mixes floats down too loud
    resampler = av.AudioResampler(format="s16", layout=layout, rate=rate)
    for frame in itertools.chain(frames, [None]):
        if frame is not None:
            # gaps and jumps of its clock are no reason to refuse a recording
            frame.pts = None
        for one in resampler.resample(frame):
            samples: np.ndarray = one.to_ndarray()[0]
            yield samples if layout == LAYOUTS[1] else samples.reshape(-1, 2)


def _gathered(parts: Iterable[np.ndarray], rate: int) -> Iterator[Tensor]:
    """Make blocks of samples, in float32, of parts in 16 bits."""
    held: list[np.ndarray] = []
    num_samples = 0
    for part in itertools.chain(parts, [None]):
        if part is not None:
            held.append(part)
            num_samples += len(part)
        if num_samples >= BLOCK_SECONDS * rate or (part is None and num_samples):
            yield torch.from_numpy(np.concatenate(held).astype(np.float32) / 2.0**15)
            held, num_samples = [], 0


def _is_plain(file: BinaryIO, sampling_rate: int) -> bool:
    """Whether `wav_blocks` takes a file, which is at its beginning before and afterwards."""
    try:
        with wave.open(file, "rb") as sound:
            form = sound.getframerate(), sound.getnchannels(), sound.getsampwidth()
            return form == (sampling_rate, 1, 2)
    except NOT_WAV:
        return False
    finally:
        file.seek(0)


def read_sound(
    source: str | os.PathLike[str] | BinaryIO,
    sampling_rate: int,
    *,
    max_seconds: float | None = DAY,
    channels: Literal[1, 2] = 1,
) -> Tensor:
    """Read samples [n] float32, from -1 to 1, from a sound file, or the sound of a film.

    They are those of all blocks of a `SoundFile`, which says what is read, and how: with two channels [n, 2].

    Args:
        source, sampling_rate, max_seconds, channels: those of `SoundFile`.

    Warns:
        UserWarning: it seems to be cut (MP3 with a header of its encoder, Ogg, Opus, Matroska, WebM). It is
            read up to there.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it cannot be read, see `SoundFile.blocks`.
    """
    return SoundFile(source, sampling_rate, max_seconds=max_seconds, channels=channels).read()


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
        with open(path, "rb") as content, opened(av, content, str(path)) as container:
            return float((container.duration or 0) / av.time_base)
    except (ImportError, OSError, ValueError):
        return 0.0


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
