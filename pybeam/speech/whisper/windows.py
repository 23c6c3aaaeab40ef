"""The text of a window: whether it is good enough, where timestamps cut it, and what of it was not said."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pybeam.speech.transcript import Segment, Word
from pybeam.speech.whisper.options import TranscriptionOptions
from pybeam.speech.whisper.recording import Window
from pybeam.speech.words import BEFORE_WORDS, BEHIND_WORDS

PUNCTUATION = BEFORE_WORDS + BEHIND_WORDS
# words of a segment that are looked at, and the score at which they look wrong
FIRST_WORDS, WRONG_SCORE = 8, 3.0
# what is usual of words: probability, and seconds
LEAST_PROBABILITY, SHORTEST, LONGEST = 0.15, 0.133, 2.0
# seconds of a window within which there might be silence beyond its ends, and that a skip covers at least
EDGE_SECONDS, LEAST_SKIP = 2.0, 1.0


class Piece(NamedTuple):
    """A part of a window.

    Attributes:
        start, end: frames from the beginning of the window.
        tokens: timestamps included.
    """

    start: int
    end: int
    tokens: list[int]


def pieces_of(
    tokens: list[int], begin: int, stride: int, size: int, *, keeps_rest: bool
) -> tuple[list[Piece], int]:
    """Cut a window where two timestamps meet, as openai-whisper does.

    If the last token is a timestamp that stands alone, nobody speaks behind it: the window is done. If two
    timestamps meet and text follows, the window's end has cut it. It is left out, and the next window begins
    there, unless `keeps_rest`. Without such a pair the whole window is one piece.

    Args:
        tokens: without EOS.
        begin: the id of the first timestamp.
        stride: frames from one timestamp to the next.
        size: frames of the window.
        keeps_rest: whether text behind the last pair is a piece, too.

    Returns:
        The pieces, one behind the other from the first token on, and how many frames later the next window
        begins.
    """
    is_stamp = [token >= begin for token in tokens]
    cuts = [i for i in range(1, len(tokens)) if is_stamp[i - 1] and is_stamp[i]]
    if not cuts:
        stamps = [token for token in tokens if token > begin]
        end = (stamps[-1] - begin) * stride if stamps else size
        return [Piece(0, end, tokens)], size
    if ends_alone(tokens, begin):
        cuts.append(len(tokens))
    pieces = []
    for first, last in zip([0, *cuts], cuts, strict=False):
        own = tokens[first:last]
        pieces.append(Piece((own[0] - begin) * stride, (own[-1] - begin) * stride, own))
    rest = tokens[cuts[-1] :]
    if not rest:
        return pieces, size
    if keeps_rest:
        pieces.append(Piece((rest[0] - begin) * stride, size, rest))
    return pieces, (tokens[cuts[-1] - 1] - begin) * stride


def ends_alone(tokens: Sequence[int], begin: int) -> bool:
    """Whether the last token is a timestamp, and the one before it is none."""
    return [token >= begin for token in tokens[-2:]] == [False, True]


def compression_ratio(text: str) -> float:
    """Return the bytes of a text divided by the bytes that zlib makes of it; repetitions make it large."""
    encoded = text.encode("utf-8")
    return len(encoded) / len(zlib.compress(encoded))


def windows_of(stretches: Iterable[Sequence[int]], most: int) -> list[tuple[int, int]]:
    """Gather stretches (start, end) in frames into windows of at most `most` frames.

    Neighbours that fit go together, with what is between them. A longer stretch is cut every `most` frames.
    """
    windows: list[tuple[int, int]] = []
    for start, end in stretches:
        if windows and end - windows[-1][0] <= most:
            windows[-1] = windows[-1][0], end
            continue
        windows += [(first, min(first + most, end)) for first in range(start, end, most)]
    return windows


@dataclass(frozen=True)
class WindowResult:
    """The text that was found in a window at one temperature.

    Attributes:
        tokens: without EOS.
        average_log_prob, no_speech_probability, temperature, compression_ratio, log_probs: see `Segment`.
    """

    tokens: list[int]
    average_log_prob: float
    no_speech_probability: float | None
    temperature: float
    compression_ratio: float
    log_probs: list[float]

    def fails(self, options: TranscriptionOptions) -> bool:
        """Whether the next temperature is to be tried. Silence is no text, and none is better."""
        least = options.log_prob_threshold
        is_unlikely = least is not None and self.average_log_prob < least
        if is_unlikely and self._may_be_silent(options):
            return False
        return is_unlikely or self.repeats(options)

    def repeats(self, options: TranscriptionOptions) -> bool:
        """Whether the text repeats itself."""
        most = options.compression_ratio_threshold
        return most is not None and self.compression_ratio > most

    def is_silent(self, options: TranscriptionOptions) -> bool:
        """Whether the window is skipped."""
        least = options.log_prob_threshold
        is_likely = least is not None and self.average_log_prob > least
        return self._may_be_silent(options) and not is_likely

    def is_forgotten(self, options: TranscriptionOptions) -> bool:
        """Whether later windows see neither this text nor those before it."""
        is_wild = self.temperature > options.prompt_reset_on_temperature
        return not self.is_silent(options) and (is_wild or not options.condition_on_previous_text)

    def _may_be_silent(self, options: TranscriptionOptions) -> bool:
        most, probability = options.no_speech_threshold, self.no_speech_probability
        return most is not None and probability is not None and probability > most


def best_of_failed(tried: Sequence[WindowResult], options: TranscriptionOptions) -> WindowResult:
    """Return the most likely text that does not repeat itself, or else the most likely one.

    Its temperature is that of the last, as in faster-whisper, so that what follows does not trust it.
    """
    plain = [one for one in tried if not one.repeats(options)]
    best = max(plain or tried, key=lambda one: one.average_log_prob)
    return replace(best, temperature=tried[-1].temperature)


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
