"""`LongFeatures`: Whisper's features of a recording that is never in memory as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from pybeam.speech.features import WhisperFeatureExtractor
from pybeam.speech.sound import SoundFile


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
        self.num_frames, self._loudest = 0, -math.inf
        # [n, F], the frames from `_first` on
        self._held, self._first = torch.zeros(0, extract.num_mel_bins), 0
        for part in extract.log_mels(sound.blocks()):
            self.num_frames += len(part)
            self._loudest = max(self._loudest, float(part.max()))
        self.close()

    def frames(self, start: int, end: int) -> Tensor:
        """Return features [end - start, F].

        Raises:
            OSError, ValueError: the file has changed meanwhile.
        """
        if start < self._first:
            self.close()
        end = min(end, self.num_frames)
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
