"""Voice activity as faster-whisper uses it: pauses are taken out of the sound, and times put back."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from pybeam.compat.faster_whisper.audio import as_tensor
from pybeam.compat.faster_whisper.results import Segment, VadOptions
from pybeam.speech.voice_activity import RATE, SpeechRules, VoiceActivity

# `start` and `end` of a stretch of speech, in samples
Chunk = dict[str, int]


def get_speech_timestamps(
    audio: np.ndarray,
    vad_options: VadOptions | dict[str, Any] | None = None,
    sampling_rate: int = RATE,
    **kwargs: Any,
) -> list[Chunk]:
    """Return where somebody speaks, as `start` and `end` in samples.

    Args:
        audio: samples [n] float32.
        vad_options: the rules; None: those of `kwargs`.
        sampling_rate: of the samples, which must be 16000 Hz.

    Raises:
        ImportError: a package is missing.
        ValueError: an option is out of range.
    """
    if sampling_rate != RATE:
        raise ValueError(f"`sampling_rate` must be {RATE}, but is {sampling_rate}")
    options = VadOptions.of(kwargs if vad_options is None else vad_options)
    rules = SpeechRules(
        threshold=options.threshold,
        silence_threshold=options.neg_threshold,
        min_speech=options.min_speech_duration_ms / 1000,
        max_speech=options.max_speech_duration_s,
        min_silence=options.min_silence_duration_ms / 1000,
        padding=options.speech_pad_ms / 1000,
    )
    found = VoiceActivity(rules)(as_tensor(audio))
    return [{"start": round(one.start * RATE), "end": round(one.end * RATE)} for one in found]


def joined(audio: np.ndarray, chunks: Iterable[Chunk]) -> np.ndarray:
    """Return the samples of these chunks, one behind the other."""
    parts = [audio[one["start"] : one["end"]] for one in chunks]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def length(chunks: Iterable[Chunk]) -> int:
    """Return the samples of these chunks."""
    return sum(one["end"] - one["start"] for one in chunks)


def gathered(chunks: Iterable[Chunk], most: int) -> list[list[Chunk]]:
    """Put neighbours together that have at most so many samples."""
    groups: list[list[Chunk]] = []
    for chunk in chunks:
        if not groups or length([*groups[-1], chunk]) > most:
            groups.append([])
        groups[-1].append(chunk)
    return groups


class Pauses:
    """The pauses between chunks that were joined.

    Args:
        chunks: in the order of time.
        sampling_rate: of their places, in Hz.
    """

    def __init__(self, chunks: Sequence[Chunk], sampling_rate: int) -> None:
        self._rate = sampling_rate
        # where each chunk ends in the joined sound, and the seconds that were left out before it
        self._ends = list(itertools.accumulate(one["end"] - one["start"] for one in chunks))
        self._before = [
            (one["end"] - end) / sampling_rate for one, end in zip(chunks, self._ends, strict=True)
        ]

    def restored(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        """Yield segments of the joined sound with their times in the recording."""
        for segment in segments:
            for word in segment.words or ():
                # both ends of a word lie in one chunk
                chunk = self._chunk((word.start + word.end) / 2)
                word.start = round(self._before[chunk] + word.start, 2)
                word.end = round(self._before[chunk] + word.end, 2)
            if segment.words:
                segment.start, segment.end = segment.words[0].start, segment.words[-1].end
            else:
                first, last = self._chunk(segment.start), self._chunk(segment.end, is_end=True)
                segment.start = round(self._before[first] + segment.start, 2)
                segment.end = round(self._before[last] + segment.end, 2)
            yield segment

    def _chunk(self, seconds: float, *, is_end: bool = False) -> int:
        find = bisect.bisect_left if is_end else bisect.bisect_right
        return min(find(self._ends, int(seconds * self._rate)), len(self._ends) - 1)
