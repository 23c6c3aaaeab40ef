"""`TranscriptionOptions`: how recordings are transcribed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pybeam.arguments import ArgumentError, ids, number, real, whole
from pybeam.contracts import MAX_WIDTH
from pybeam.processors.base import Stage, check_stage
from pybeam.speech.words import BEFORE_WORDS, BEHIND_WORDS

# each is one more attempt at a window
MAX_TEMPERATURES = 100

Windows = Literal["sequential", "batched"]


@dataclass(frozen=True)
class TranscriptionOptions:
    """How recordings are transcribed. The defaults are those of faster-whisper.

    Args:
        language: the spoken language, such as ``en`` or ``<|en|>``; None: it is detected in the first
            window of each recording.
        task: "transcribe", or "translate" into English; None: that of `generation_config.json`, or else
            "transcribe".
        windows: "sequential": each window of 30 seconds begins where the last complete segment of the one
            before ended, and may see its text. "batched": the recording is cut beforehand, at the ends of
            its stretches of speech or every 30 seconds, and no window sees another.
        timestamps: whether the model writes timestamps. Without them every window is one segment.
        words: whether segments have words with their times. The next sequential window then begins where the
            last word ended.
        temperatures: tried in this order, until a window's text passes both thresholds. 0.0 searches with
            the transcriber's algorithm, others sample.
        best_of: samples at each temperature; the one with the best average log-probability is taken.
        compression_ratio_threshold: text that compresses better repeats itself, and the next temperature is
            tried; None: no limit.
        log_prob_threshold: the next temperature is tried if the average log-probability is lower; None: no
            limit.
        no_speech_threshold: a window whose no-speech probability is higher is skipped, unless its average
            log-probability is above `log_prob_threshold`; None: no window is skipped.
        condition_on_previous_text: whether a sequential window sees the text before it.
        prompt_reset_on_temperature: a text that was sampled at a higher temperature, and all before it, is
            not shown to later windows.
        initial_prompt: text, or token ids, that the first window sees as if it had been said before;
            batched windows all see it.
        hotwords: words that all windows see before the text before them.
        prefix: text with which the first window's text begins. Hotwords are not shown to that window.
        hallucination_silence_threshold: seconds, where there are words; a text that looks invented is
            skipped if it stands between longer pauses; None: no text is.
        suppress_tokens: ids that are never written; None: those of the model's `settings`, which come from
            `generation_config.json`.
        suppress_blank: whether `begin_suppress_tokens` of these settings may not begin a window.
        max_initial_timestamp: seconds after which the first segment of a window may begin at most;
            None: no limit.
        max_new_tokens: tokens of a window, EOS included; None: half of the model's positions, or as many as
            the prompt leaves.
        stage: "logits": bans act on logits, so that other tokens become more probable, as in openai-whisper
            and faster-whisper. "log_probs": they act on log-probabilities, as in transformers' beam search.
        multilingual: whether the language is detected in each window, since recordings may have several.
        language_detection_segments: windows at most in which the language of a recording is detected.
        language_detection_threshold: the first of them in which a language is more probable than this says
            which it is; without one it is the language of most.
        chunk_length: seconds of sound in a window at most, which silence fills up; None: as many as the model
            hears.
        prepend_punctuations: marks that belong to the word behind them, where there are words.
        append_punctuations: marks that belong to the word before them.
        seed: of the samples. Each window has random numbers of its own, which follow from this number and
            the window's place, whatever else is transcribed.

    Raises:
        TypeError, ValueError: an option is of the wrong type or out of range, or two do not fit together.
    """

    language: str | None = None
    task: str | None = None
    windows: Windows = "sequential"
    timestamps: bool = True
    words: bool = False
    temperatures: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    best_of: int = 5
    compression_ratio_threshold: float | None = 2.4
    log_prob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous_text: bool = True
    prompt_reset_on_temperature: float = 0.5
    initial_prompt: str | Sequence[int] | None = None
    hotwords: str | None = None
    prefix: str | None = None
    hallucination_silence_threshold: float | None = None
    suppress_tokens: Sequence[int] | None = None
    suppress_blank: bool = True
    max_initial_timestamp: float | None = 1.0
    max_new_tokens: int | None = None
    stage: Stage = "logits"
    seed: int = 0
    multilingual: bool = False
    language_detection_segments: int = 1
    language_detection_threshold: float = 0.5
    chunk_length: int | None = None
    prepend_punctuations: str = BEFORE_WORDS
    append_punctuations: str = BEHIND_WORDS

    def __post_init__(self) -> None:
        if self.windows not in ("sequential", "batched"):
            raise ArgumentError(
                "windows", f"must be 'sequential' or 'batched', but is {self.windows!r}"
            )
        whole("best_of", self.best_of, 1, MAX_WIDTH)
        whole("seed", self.seed, 0, 2**63 - 1)
        whole("language_detection_segments", self.language_detection_segments, 1)
        real("language_detection_threshold", self.language_detection_threshold)
        if self.chunk_length is not None:
            whole("chunk_length", self.chunk_length, 1)
        check_stage(self.stage)
        self._check_temperatures()
        for name in ("compression_ratio_threshold", "no_speech_threshold", "max_initial_timestamp"):
            value = getattr(self, name)
            if value is not None and value != 0:
                number(name, value, 0)
        self._check_sequential()
        if self.log_prob_threshold is not None:
            number("log_prob_threshold", self.log_prob_threshold, -math.inf)
        if self.max_new_tokens is not None:
            whole("max_new_tokens", self.max_new_tokens, 1)
        if self.suppress_tokens is not None:
            object.__setattr__(
                self, "suppress_tokens", ids("suppress_tokens", self.suppress_tokens)
            )
        if self.initial_prompt is not None and not isinstance(self.initial_prompt, str):
            object.__setattr__(self, "initial_prompt", ids("initial_prompt", self.initial_prompt))

    def _check_sequential(self) -> None:
        """Check what windows need that follow each other."""
        threshold = self.hallucination_silence_threshold
        if threshold is not None:
            number("hallucination_silence_threshold", threshold, 0)
            if not self.words:
                raise ArgumentError(
                    "hallucination_silence_threshold", "needs words=True, by which texts are judged"
                )
        if self.prefix is not None and not isinstance(self.prefix, str):
            raise TypeError(f"`prefix` must be a text, but is {self.prefix!r}")
        for name in ("prefix", "hallucination_silence_threshold"):
            if self.windows == "batched" and getattr(self, name) is not None:
                raise ArgumentError(
                    name, "needs windows='sequential', since batched ones know no order"
                )

    def _check_temperatures(self) -> None:
        given = self.temperatures
        if isinstance(given, int | float):
            raise TypeError(f"`temperatures` must be a list, but is {given!r}; write [{given!r}]")
        temperatures = tuple(given)
        object.__setattr__(self, "temperatures", temperatures)
        if not 0 < len(temperatures) <= MAX_TEMPERATURES:
            problem = f"must hold 1 to {MAX_TEMPERATURES}, but holds {len(temperatures)}"
            raise ArgumentError("temperatures", problem)
        for temperature in temperatures:
            if temperature != 0:
                number("temperatures", temperature, 0)
