"""Text that was not said: words that look wrong between silences, by the rules of openai-whisper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pybeam.speech.transcript import Segment, Word
from pybeam.speech.whisper.recording import Window
from pybeam.speech.words import BEFORE_WORDS, BEHIND_WORDS

PUNCTUATION = BEFORE_WORDS + BEHIND_WORDS
# words of a segment that are looked at, and the score at which they look wrong
FIRST_WORDS, WRONG_SCORE = 8, 3.0
# what is usual of words: probability, and seconds
LEAST_PROBABILITY, SHORTEST, LONGEST = 0.15, 0.133, 2.0
# seconds of a window within which there might be silence beyond its ends, and that a skip covers at least
EDGE_SECONDS, LEAST_SKIP = 2.0, 1.0


class Kept(NamedTuple):
    """The segments of a window that are kept.

    Attributes:
        segments: these.
        skip: frames after which the next window begins; None: as without this rule.
        is_gap: whether it begins with the first segment, behind a silence.
    """

    segments: list[Segment]
    skip: int | None = None
    is_gap: bool = False


class HallucinationFilter(NamedTuple):
    """Leaves out segments with words that were not said.

    Attributes:
        threshold: seconds; a longer pause is a silence. None: nothing is taken for invented.
        longest: frames that a window may have.
        num_frames: of the recording.
        rate: frames per second.
    """

    threshold: float | None
    longest: int
    num_frames: int
    rate: float

    def kept(self, segments: list[Segment], window: Window, last_end: float) -> Kept:
        """Return what is kept of the segments of a window.

        If the first one looks wrong behind a silence, the next window begins with it. A segment that looks
        wrong between silences, or beside others like it, goes with all that follow.

        Args:
            segments: of this window.
            window: where they are.
            last_end: when the last word before the window ended, in seconds.
        """
        if self.threshold is None:
            return Kept(segments)
        start = window.start / self.rate
        first = _next_with_words(segments)
        if first is not None and looks_wrong(first) and first.start - start > self.threshold:
            return Kept([], max(1, round((first.start - start) * self.rate)), True)
        for i, segment in enumerate(segments):
            if not segment.words:
                continue
            following = _next_with_words(segments[i + 1 :])
            if looks_wrong(segment) and self._is_alone(segment, window, following, last_end):
                return Kept(segments[:i], self._behind(segment, window))
            last_end = segment.end
        return Kept(segments)

    def _is_alone(
        self, segment: Segment, window: Window, following: Segment | None, last_end: float
    ) -> bool:
        """Whether silence, or what looks wrong too, stands on both sides of a segment."""
        assert self.threshold is not None
        start, size = window.start / self.rate, window.size / self.rate
        next_start = start + size if following is None else following.words[0].start
        is_behind_silence = (
            segment.start - last_end > self.threshold
            or segment.start < self.threshold
            or segment.start - start < EDGE_SECONDS
        )
        is_before_silence = (
            next_start - segment.end > self.threshold
            or (following is not None and looks_wrong(following))
            or (window.start + self.longest) / self.rate - segment.end < EDGE_SECONDS
        )
        return is_behind_silence and is_before_silence

    def _behind(self, segment: Segment, window: Window) -> int:
        """Return the frames after which the next window begins, if this segment was not said."""
        assert self.threshold is not None
        if self.num_frames / self.rate - segment.end < self.threshold:
            return self.num_frames - window.start
        begin = max(window.start / self.rate + LEAST_SKIP, segment.start)
        return round(begin * self.rate) - window.start


def looks_wrong(segment: Segment) -> bool:
    """Whether the first words of a segment are improbable, very short or very long."""
    words = [word for word in segment.words if word.text not in PUNCTUATION][:FIRST_WORDS]
    score = sum(map(_wrongness, words))
    return bool(segment.words) and (score >= WRONG_SCORE or score + 0.01 >= len(words))


def _wrongness(word: Word) -> float:
    seconds = word.end - word.start
    score = 1.0 if word.probability < LEAST_PROBABILITY else 0.0
    score += 15 * max(0.0, SHORTEST - seconds)
    return score + max(0.0, seconds - LONGEST)


def _next_with_words(segments: Sequence[Segment]) -> Segment | None:
    return next((segment for segment in segments if segment.words), None)
