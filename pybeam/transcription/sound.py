"""`Sound`: the features of a recording, cut into windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.transformer.sources import SharedFeatures
from pybeam.speech.features import WhisperFeatureExtractor
from pybeam.speech.long_features import LongFeatures
from pybeam.speech.sound import SoundFile
from pybeam.transcription.recording import Recording


class Sound:
    """The features of a recording, cut into windows.

    Args:
        features: [E, F], or those of a long recording.
        window: frames of a window.
        is_shared: whether the model can keep the encoder's states of a window for its next request.
    """

    def __init__(self, features: Tensor | LongFeatures, window: int, *, is_shared: bool) -> None:
        self._features, self._window, self._is_shared = features, window, is_shared
        self.num_frames = len(features) if isinstance(features, Tensor) else features.num_frames
        self._last: tuple[tuple[int, int], Any] | None = None

    @classmethod
    def of(
        cls, recording: Recording, extract: WhisperFeatureExtractor, window: int, *, is_shared: bool
    ) -> Sound:
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

    def window(self, start: int, size: int) -> Any:
        """Return `size` frames as a source. Zeros fill the window, which are neither loud nor silent."""
        if self._last is None or self._last[0] != (start, size):
            if isinstance(self._features, Tensor):
                features = self._features[start : start + size]
            else:
                features = self._features.frames(start, start + size)
            filled = F.pad(features, (0, 0, 0, self._window - len(features)))
            self._last = (start, size), SharedFeatures(filled) if self._is_shared else filled
        return self._last[1]

    def close(self) -> None:
        """Let go of the recording."""
        self._last = None
        if isinstance(self._features, LongFeatures):
            self._features.close()
