"""`WindowResult`: the text of a window, and whether it is good enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pybeam.transcription.options import TranscriptionOptions


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
