"""The turns of a live session: its sound, cut by its client or by voice activity."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from pybeam.server.errors import APIError
from pybeam.speech import (
    RawSound,
    SpeechRules,
    SpeechStart,
    Utterance,
    UtteranceFinder,
    VoiceActivity,
)
from pybeam.speech.pcm import Encoding
from pybeam.speech.voice_activity import RATE

BYTES_PER_SAMPLE = 4


class Turns(Protocol):
    """Sound that comes in chunks, and becomes turns.

    Attributes:
        seconds: the length of the sound.
    """

    @property
    def seconds(self) -> float: ...

    def more(self, chunk: bytes) -> list[SpeechStart | Utterance]:
        """Take the next chunk of sound, and return what follows from it."""

    def end(self) -> list[SpeechStart | Utterance]:
        """Return what is left when the sound ends, or its client commits it."""


class CommittedTurns:
    """Turns that end when the client says so. All sound is held until then.

    Args:
        start: seconds of the session before this sound.
        rate, encoding: of chunks; see `pybeam.speech.RawSound`.
        most: bytes of samples that may be held.

    Raises:
        ValueError: the rate needs a package that is missing.
    """

    def __init__(self, start: float, rate: int, encoding: Encoding, most: int) -> None:
        self._start, self._sound = start, RawSound(RATE, rate, encoding)
        self._most = most // BYTES_PER_SAMPLE
        # in one piece, since chunks may be tiny
        self._held = bytearray()

    @property
    def seconds(self) -> float:
        return len(self._held) / BYTES_PER_SAMPLE / RATE

    def more(self, chunk: bytes) -> list[SpeechStart | Utterance]:
        """Hold the next chunk. Raises APIError if that is too much, and drops the chunk."""
        samples = self._sound.more(chunk)
        if len(self._held) // BYTES_PER_SAMPLE + len(samples) > self._most:
            problem = f"must wait for a commit: {self._most // RATE} seconds of sound are held"
            raise APIError(400, f"`audio` {problem}", "audio")
        self._held += samples.numpy().tobytes()
        return []

    def end(self) -> list[SpeechStart | Utterance]:
        self._held += self._sound.end().numpy().tobytes()
        if not self._held:
            return []
        samples = torch.frombuffer(self._held, dtype=torch.float32)
        end = self._start + len(samples) / RATE
        return [SpeechStart(self._start), Utterance(self._start, end, samples)]


class DetectedTurns:
    """Turns that end where nobody speaks.

    Args:
        start: seconds of the session before this sound.
        rate, encoding: of chunks; see `pybeam.speech.RawSound`.
        rules: see `pybeam.speech.UtteranceFinder`.

    Raises:
        ImportError: a package for voice activity is missing.
        ValueError: the rate needs a package that is missing.
    """

    def __init__(self, start: float, rate: int, encoding: Encoding, rules: SpeechRules) -> None:
        self._start, self._finder = start, UtteranceFinder(VoiceActivity(rules), rate, encoding)

    @property
    def seconds(self) -> float:
        return self._finder.seconds

    def more(self, chunk: bytes) -> list[SpeechStart | Utterance]:
        return [self._later(one) for one in self._finder.more(chunk)]

    def end(self) -> list[SpeechStart | Utterance]:
        return [self._later(one) for one in self._finder.end()]

    def _later(self, one: Any) -> Any:
        times = {name: getattr(one, name) for name in ("start", "end") if hasattr(one, name)}
        return one._replace(**{name: time + self._start for name, time in times.items()})
