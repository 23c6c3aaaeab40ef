"""The text of a window: whether it is good enough, and where timestamps cut it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pybeam.speech.whisper.options import TranscriptionOptions


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
        The pieces, and how many frames later the next window begins.
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
        average_log_prob, no_speech_probability, temperature, compression_ratio: see `Segment`.
    """

    tokens: list[int]
    average_log_prob: float
    no_speech_probability: float | None
    temperature: float
    compression_ratio: float

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
