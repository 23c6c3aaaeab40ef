"""Which language is spoken in a recording."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pybeam.speech.whisper.options import TranscriptionOptions
from pybeam.speech.whisper.recording import Window
from pybeam.speech.whisper.requests import Question
from pybeam.speech.whisper.window_jobs import Asking


@dataclass(frozen=True, slots=True)
class DetectedLanguage:
    """The language that is heard in a recording.

    Attributes:
        code: such as "en".
        probability: of this language among all that the model knows.
        probabilities: of all languages in the window that was heard last, the most probable one first.
    """

    code: str
    probability: float
    probabilities: dict[str, float]


class LanguageDetector:
    """Ask which language is spoken in a window; see `pybeam.speech.whisper.window_jobs`.

    Args:
        start_id: the token that a transcript starts with.
        codes: the languages that the model knows, in the order of the recorded tokens.
        options: how many windows are heard, and the probability that ends it.
    """

    def __init__(self, start_id: int, codes: Iterable[str], options: TranscriptionOptions) -> None:
        self._start_id, self._codes, self._options = start_id, list(codes), options

    def probabilities(self, window: Window) -> Asking[dict[str, float]]:
        """Return the probability of each language, the most probable one first."""
        [answer] = yield [Question(window.source, (self._start_id,), back=0, max_length=1)]
        log_probs = answer.token_log_probs[-len(self._codes) :]
        largest = max(log_probs)
        shares = [math.exp(one - largest) for one in log_probs]
        found = {code: share / sum(shares) for code, share in zip(self._codes, shares, strict=True)}
        return dict(sorted(found.items(), key=lambda one: -one[1]))

    def detect(self, windows: Iterable[Window]) -> Asking[DetectedLanguage]:
        """Return the language of the first of these windows that is sure of one, or else that of most."""
        heard: dict[str, list[float]] = {}
        for window in windows:
            found = yield from self.probabilities(window)
            code, probability = next(iter(found.items()))
            if probability > self._options.language_detection_threshold:
                return DetectedLanguage(code, probability, found)
            heard.setdefault(code, []).append(probability)
        assert heard, "there must be a window"
        code = max(heard, key=lambda one: len(heard[one]))
        return DetectedLanguage(code, max(heard[code]), found)
