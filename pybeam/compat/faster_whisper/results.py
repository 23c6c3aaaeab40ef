"""The results of faster-whisper: segments, words, options, and what is known of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pybeam.speech import transcript


class _AsDict:
    """Results of older versions were named tuples, and programs still ask them for a dict."""

    def _asdict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass
class Word(_AsDict):
    """A word.

    Attributes:
        start, end: seconds.
        word: its text, with the space before it.
        probability: the mean of its tokens.
    """

    start: float
    end: float
    word: str
    probability: float


@dataclass
class Segment(_AsDict):
    """A piece of a transcript.

    Attributes:
        id: 1, 2 and so on.
        seek: frames of 10 ms before its window.
        start, end: seconds.
        text: with the space before it.
        tokens: ids, timestamps included.
        avg_logprob, compression_ratio, no_speech_prob, temperature: of its window, see
            `pybeam.speech.Segment`.
        words: None, unless they were asked for.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float | None
    words: list[Word] | None
    temperature: float | None

    @classmethod
    def of(cls, number: int, seek: int, found: transcript.Segment, *, has_words: bool) -> Segment:
        """Return a segment of pybeam in this form."""
        words = [Word(one.start, one.end, one.text, one.probability) for one in found.words]
        return cls(
            id=number,
            seek=seek,
            start=found.start,
            end=found.end,
            text=found.text,
            tokens=list(found.tokens),
            avg_logprob=found.average_log_prob,
            compression_ratio=found.compression_ratio,
            no_speech_prob=found.no_speech_probability,
            words=words if has_words else None,
            temperature=found.temperature,
        )


@dataclass
class TranscriptionOptions:
    """How a recording is transcribed.

    Attributes:
        temperatures: those of the argument `temperature`.
        beam_size, best_of, patience, length_penalty, repetition_penalty, no_repeat_ngram_size,
            log_prob_threshold, no_speech_threshold, compression_ratio_threshold, condition_on_previous_text,
            prompt_reset_on_temperature, initial_prompt, prefix, suppress_blank, suppress_tokens,
            without_timestamps, max_initial_timestamp, word_timestamps, prepend_punctuations,
            append_punctuations, multilingual, max_new_tokens, clip_timestamps,
            hallucination_silence_threshold, hotwords: the arguments of `WhisperModel.transcribe`.
    """

    beam_size: int
    best_of: int
    patience: float
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    log_prob_threshold: float | None
    no_speech_threshold: float | None
    compression_ratio_threshold: float | None
    condition_on_previous_text: bool
    prompt_reset_on_temperature: float
    temperatures: Sequence[float]
    initial_prompt: str | Iterable[int] | None
    prefix: str | None
    suppress_blank: bool
    suppress_tokens: Sequence[int] | None
    without_timestamps: bool
    max_initial_timestamp: float
    word_timestamps: bool
    prepend_punctuations: str
    append_punctuations: str
    multilingual: bool
    max_new_tokens: int | None
    clip_timestamps: str | Sequence[Any]
    hallucination_silence_threshold: float | None
    hotwords: str | None


@dataclass
class VadOptions:
    """Which sound is speech.

    Attributes:
        threshold, neg_threshold, min_speech_duration_ms, max_speech_duration_s, min_silence_duration_ms,
            speech_pad_ms: `threshold`, `silence_threshold`, `min_speech`, `max_speech`, `min_silence` and
            `padding` of `pybeam.speech.SpeechRules`, in these units.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_duration_ms: int = 0
    max_speech_duration_s: float = float("inf")
    min_silence_duration_ms: int = 2000
    speech_pad_ms: int = 400

    @classmethod
    def of(cls, given: VadOptions | dict[str, Any] | None) -> VadOptions:
        """Return what `vad_parameters` says, the argument `given`."""
        return given if isinstance(given, VadOptions) else cls(**(given or {}))


@dataclass
class TranscriptionInfo:
    """Facts about a recording that come before its segments.

    Attributes:
        language, language_probability: 1 if the language was given.
        duration, duration_after_vad: seconds, the second without the pauses that voice activity left out.
        all_language_probs: languages and their probabilities, the most probable first; None: the language
            was given.
        transcription_options, vad_options: what it is transcribed with.
    """

    language: str
    language_probability: float
    duration: float
    duration_after_vad: float
    all_language_probs: list[tuple[str, float]] | None
    transcription_options: TranscriptionOptions
    vad_options: VadOptions | dict[str, Any] | None


def format_timestamp(
    seconds: float, always_include_hours: bool = False, decimal_marker: str = "."
) -> str:
    """Write seconds as minutes, seconds and milliseconds, with hours if there are some.

    Args:
        seconds: 0 or more.
        always_include_hours: whether hours are there if there are none.
        decimal_marker: what stands before the milliseconds.

    Raises:
        ValueError: they are negative.
    """
    if seconds < 0:
        raise ValueError(f"`seconds` must be 0 or more, but is {seconds}")
    return transcript.format_time(seconds, decimal_marker, has_hours=always_include_hours)
