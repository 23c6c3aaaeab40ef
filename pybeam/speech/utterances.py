"""Cut sound into utterances while it comes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.speech.pcm import Blocks, Encoding, RawSound
from pybeam.speech.voice_activity import FRAME, RATE, SpeechRules, StretchFinder, VoiceActivity

# a stretch settles soon, and is no longer than a window of Whisper
LIVE_RULES = SpeechRules(max_speech=30.0, min_silence=0.5, padding=0.25)
# frames that are judged together: an eighth of a second
FRAMES_AT_ONCE = 4


class SpeechStart(NamedTuple):
    """Somebody has begun to speak.

    Attributes:
        start: seconds from the beginning of the stream, where the utterance will begin.
    """

    start: float


class Utterance(NamedTuple):
    """A stretch of speech that has ended.

    Attributes:
        start, end: seconds from the beginning of the stream.
        samples: [n] float32 at 16 kHz.
    """

    start: float
    end: float
    samples: Tensor


class UtteranceFinder:
    """Finds utterances in sound that comes in chunks. It holds no more sound than that of one.

    Utterances are the stretches that `VoiceActivity` finds in the whole sound, so any chunks of the same
    sound give the same. Let r be its `SpeechRules`, and d = max(r.min_silence, 2 r.padding), or, where
    r.min_speech is not 0, r.min_silence + 2 r.padding + r.min_speech. An utterance is found when d seconds of
    silence have come behind its last word, and at the latest when r.max_speech + d seconds have come behind
    its start; and up to 0.16 s later, since frames are judged together.

    Args:
        activity: says where somebody speaks; None: with
            ``SpeechRules(min_silence=0.5, padding=0.25, max_speech=30)``.
        rate, encoding: of chunks; see `RawSound`.

    Raises:
        ValueError: `max_speech` of its rules is infinite, or see `RawSound`.
        ImportError: a package is missing.
    """

    def __init__(
        self,
        activity: VoiceActivity | None = None,
        rate: int | None = None,
        encoding: Encoding = "s16le",
    ) -> None:
        activity = VoiceActivity(LIVE_RULES) if activity is None else activity
        rules = activity.rules
        if rules.max_speech == math.inf:
            problem = "must be finite for a stream, whose sound is held until then"
            raise ArgumentError("max_speech", f"{problem}; 30 s are a window of Whisper")
        self._sound = RawSound(RATE, rate, encoding)
        self._judge, self._finder = activity.judge(FRAMES_AT_ONCE), StretchFinder(rules)
        self._padding = RATE * rules.padding
        self._blocks = Blocks(FRAMES_AT_ONCE * FRAME)
        # the blocks from the sample `_first` on, up to `_num_samples`
        self._held: deque[np.ndarray] = deque()
        self._first = self._num_samples = 0
        # where the utterance before ended, without padding
        self._last: int | None = None
        self._has_told = False

    @property
    def seconds(self) -> float:
        """The length of the sound that has been looked at."""
        return self._num_samples / RATE

    def utterances(self, chunks: Iterable[Any]) -> Iterator[Utterance]:
        """Yield the utterances of a whole stream, which comes in these `chunks`, each as soon as it is found.

        Raises:
            TypeError, ValueError: a chunk is no sound.
        """

        def events() -> Iterator[SpeechStart | Utterance]:
            for chunk in chunks:
                yield from self.more(chunk)
            yield from self.end()

        return (one for one in events() if isinstance(one, Utterance))

    def more(self, chunk: Any) -> Iterator[SpeechStart | Utterance]:
        """Yield of each utterance its start, and later it, as far as the next chunk says.

        Raises:
            TypeError, ValueError: the chunk is no sound.
        """
        yield from self._heard(self._sound.more(chunk))

    def _heard(self, samples: Tensor) -> Iterator[SpeechStart | Utterance]:
        for block in self._blocks.more(samples.numpy()):
            self._hold(block)
            yield from self._judged(self._judge.more(block))
            self._forget()

    def end(self) -> Iterator[SpeechStart | Utterance]:
        """Yield what is left when the sound ends."""
        yield from self._heard(self._sound.end())
        left = self._blocks.end()
        self._hold(left)
        yield from self._judged(np.concatenate((self._judge.more(left), self._judge.end())))
        self._finder.end(self._num_samples)
        yield from self._settled(has_ended=True)

    def _hold(self, block: np.ndarray) -> None:
        self._held.append(block)
        self._num_samples += len(block)

    def _judged(self, probabilities: np.ndarray) -> Iterator[SpeechStart | Utterance]:
        for probability in probabilities:
            self._finder.add(float(probability))
            yield from self._settled()

    def _settled(self, *, has_ended: bool = False) -> Iterator[SpeechStart | Utterance]:
        finder = self._finder
        while finder.found:
            start, end = finder.found[0]
            padding = self._padding_behind(end, has_ended=has_ended)
            if padding is None:
                return
            first, last = self._before(start), int(min(self._num_samples, end + padding))
            if not self._has_told:
                yield SpeechStart(first / RATE)
            yield Utterance(first / RATE, last / RATE, self._cut(first, last))
            del finder.found[0]
            self._last, self._has_told = end, False
        if finder.start is not None and finder.is_certain and not self._has_told:
            self._has_told = True
            yield SpeechStart(self._before(finder.start) / RATE)

    def _padding_behind(self, end: int, *, has_ended: bool) -> float | None:
        """Return the padding of the first stretch behind its end; None: it depends on what comes."""
        finder, most = self._finder, 2 * self._padding
        is_found = len(finder.found) > 1
        following = finder.found[1][0] if is_found else finder.start
        if following is None:
            return self._padding if has_ended or finder.place >= end + most else None
        if following - end >= most:
            return self._padding
        return (following - end) // 2 if is_found or finder.is_certain else None

    def _before(self, start: int) -> int:
        """Return where a stretch begins with its padding."""
        own = self._padding
        if self._last is not None and start - self._last < 2 * own:
            own = (start - self._last) // 2
        return int(max(0, start - own))

    def _forget(self) -> None:
        """Let go of the sound before the next utterance."""
        finder = self._finder
        start = finder.found[0][0] if finder.found else finder.start
        needed = finder.place - self._padding if start is None else self._before(start)
        while self._held and self._first + len(self._held[0]) <= needed:
            self._first += len(self._held.popleft())

    def _cut(self, start: int, end: int) -> Tensor:
        held = np.concatenate(self._held)
        return torch.from_numpy(held[start - self._first : end - self._first].copy())
