"""Recordings that are handed over, their features window by window, and the news that come back."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.transformer.sources import SharedFeatures
from pybeam.speech.features import WhisperFeatureExtractor
from pybeam.speech.sound import SoundFile
from pybeam.speech.transcript import Segment, Stretch, Transcript


class LongFeatures:
    """The features of a recording, computed as they are asked for.

    The recording is read twice: at once for its length and its loudest moment, to which all features refer,
    and then as windows move on. A window before the last one makes it begin again. Features are equal, to the
    bit, to those of `WhisperFeatureExtractor.recording`.

    Args:
        extract: computes features.
        sound: the recording.

    Attributes:
        num_frames: of the whole recording.

    Raises:
        OSError, ValueError: it cannot be read; see `SoundFile.blocks`.
    """

    def __init__(self, extract: WhisperFeatureExtractor, sound: SoundFile) -> None:
        self._extract, self._sound = extract, sound
        # parts of a recording are transcribed side by side
        self._lock = threading.Lock()
        self.num_frames, self._loudest = 0, -math.inf
        # [n, F], the frames from `_first` on
        self._held, self._first = torch.zeros(0, extract.num_mel_bins), 0
        for part in extract.log_mels(sound.blocks()):
            self.num_frames += len(part)
            self._loudest = max(self._loudest, float(part.max()))
        self.close()

    @property
    def seconds(self) -> float:
        """The length of the recording."""
        return self.num_frames * self._extract.hop_length / self._extract.sampling_rate

    def frames(self, start: int, end: int) -> Tensor:
        """Return features [end - start, F].

        Raises:
            OSError, ValueError: the file has changed meanwhile.
        """
        with self._lock:
            return self._frames(start, min(end, self.num_frames))

    def _frames(self, start: int, end: int) -> Tensor:
        if start < self._first:
            self.close()
        while self._first + len(self._held) < end:
            part = next(self._parts, None)
            if part is None:
                raise ValueError(f"{self._sound.name} has changed while it was read; read it again")
            self._forget(start)
            self._held = torch.cat((self._held, self._extract.scaled(part, self._loudest)))
        self._forget(start)
        return self._held[: max(0, end - start)]

    def _forget(self, place: int) -> None:
        num = min(place - self._first, len(self._held))
        self._held, self._first = self._held[num:], self._first + num

    def close(self) -> None:
        """Let go of the file. Whoever asks for frames afterwards makes it begin again."""
        self._held, self._first = self._held[:0].clone(), 0
        self._parts: Iterator[Tensor] = self._extract.log_mels(self._sound.blocks())


Sound = Tensor | SoundFile | LongFeatures


@dataclass(frozen=True, eq=False)
class Recording:
    """A recording, and what is known about it.

    Args:
        samples: [n] float32 from -1 to 1 at `Transcriber.sampling_rate`, or features [E, F] as
            `pybeam.speech.WhisperFeatureExtractor.recording` makes them; or a `pybeam.speech.SoundFile`,
            which is read window by window and needs no memory for its length; or a function without
            arguments that returns one of them. It is called when the recording's turn comes; if it raises,
            the recording fails alone.
        stretches: the parts in which somebody speaks, in the order of time; the others are not transcribed.
            None: everything is.
        language: the spoken language; None: that of the options.
        id: any object; it comes back as `Progress.id`.
        previous: tokens that were said before it. Its windows see them, behind the initial prompt.
    """

    samples: Sound | Callable[[], Sound]
    stretches: Sequence[Stretch] | None = None
    language: str | None = None
    id: Any = None
    previous: Sequence[int] = ()

    @classmethod
    def of(cls, given: Any) -> Recording:
        """Return a recording as it is, and one of anything else that is samples."""
        return given if isinstance(given, Recording) else cls(given)


@dataclass(frozen=True, slots=True)
class Progress:
    """The news of a recording: one more window is transcribed, or it is complete, or it has failed.

    Attributes:
        index: position of the recording among those handed over.
        id: the recording's own id.
        position: seconds of the recording that are transcribed. News come in the order of time.
        duration: seconds of the recording, 0 if it could not be read.
        segments: those that this window adds.
        transcript: all of it, in the last news of a recording; None: there is more to come, or it failed.
        error: the error it failed with; None: it did not fail.
    """

    index: int
    id: Any
    position: float
    duration: float
    segments: tuple[Segment, ...] = ()
    transcript: Transcript | None = None
    error: Exception | None = None


class Window(NamedTuple):
    """A window of a recording.

    Attributes:
        start, size: frames; those behind the recording's end, which fill the window, do not count.
        source: the features of the whole window, as the model takes them.
    """

    start: int
    size: int
    source: Any


class RecordingFeatures:
    """The features of a recording, cut into windows.

    Args:
        features: [E, F], or those of a long recording.
        window: frames of a window.
        is_shared: whether the model can keep the encoder's states of a window for its next request.
    """

    def __init__(self, features: Tensor | LongFeatures, window: int, *, is_shared: bool) -> None:
        self._features, self._window, self._is_shared = features, window, is_shared
        self.num_frames = len(features) if isinstance(features, Tensor) else features.num_frames
        self._last: Window | None = None

    @classmethod
    def of(
        cls, recording: Recording, extract: WhisperFeatureExtractor, window: int, *, is_shared: bool
    ) -> RecordingFeatures:
        """Read what is needed of a recording before its first window."""
        samples = recording.samples() if callable(recording.samples) else recording.samples
        if isinstance(samples, SoundFile):
            samples = LongFeatures(extract, samples)
        if isinstance(samples, LongFeatures):
            return cls(samples, window, is_shared=is_shared)
        if isinstance(samples, np.ndarray):
            samples = torch.from_numpy(samples)
        bins = extract.num_mel_bins
        if not isinstance(samples, Tensor) or not samples.dtype.is_floating_point:
            found = samples.dtype if isinstance(samples, Tensor) else type(samples).__name__
            raise TypeError(
                f"a recording must be a float tensor, samples [n] from -1 to 1 or features [E, {bins}], or a "
                f"SoundFile, but is {found}"
            )
        is_features = samples.ndim == 2 and samples.shape[1] == bins
        if samples.ndim != 1 and not is_features:
            raise ValueError(
                f"a recording must have samples [n] or features [E, {bins}], but has the shape "
                f"{list(samples.shape)}; mix channels down, for example with `.mean(0)`"
            )
        features = samples.float() if is_features else extract.recording(samples)
        return cls(features, window, is_shared=is_shared)

    def window(self, start: int, size: int) -> Window:
        """Return a window of `size` frames. Zeros fill it, which are neither loud nor silent."""
        last = self._last
        if last is None or (last.start, last.size) != (start, size):
            if isinstance(self._features, Tensor):
                features = self._features[start : start + size]
            else:
                features = self._features.frames(start, start + size)
            filled = F.pad(features, (0, 0, 0, self._window - len(features)))
            source = SharedFeatures(filled) if self._is_shared else filled
            last = self._last = Window(start, size, source)
        return last

    def close(self) -> None:
        """Let go of the recording."""
        self._last = None
        if isinstance(self._features, LongFeatures):
            self._features.close()
