"""Recordings that are handed over, and the news of them that come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pybeam.speech.long_features import LongFeatures
from pybeam.speech.sound import SoundFile
from pybeam.speech.transcript import Segment, Stretch, Transcript

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
    """

    samples: Sound | Callable[[], Sound]
    stretches: Sequence[Stretch] | None = None
    language: str | None = None
    id: Any = None

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
