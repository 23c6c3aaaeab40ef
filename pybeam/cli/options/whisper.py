"""Options for transcripts of Whisper models: times, long recordings, voice activity, prompts, fallbacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from pybeam.cli.options.declare import (
    Count,
    NotNegative,
    Parsed,
    Positive,
    given,
    option,
    refuse,
    section,
)
from pybeam.cli.options.errors import as_usage_errors

if TYPE_CHECKING:
    from pybeam.speech.voice_activity import SpeechRules
    from pybeam.speech.whisper import TranscriptionOptions

# seconds of a window, and of the pauses at which `--windows batched` cuts; both as faster-whisper has them
WINDOW, WINDOW_PAUSE = 30.0, 0.16
VAD = ("vad_threshold", "vad_min_silence", "vad_padding", "vad_max_speech")


def _temperatures(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _threshold(text: str) -> float:
    number = float("nan" if text == "none" else text)
    if number != number and text != "none":
        raise ValueError
    return number


Temperatures = Annotated[
    tuple[float, ...],
    Parsed(_temperatures, "{!r} must be numbers joined by commas, such as 0,0.4,0.8"),
]
# `none` is NaN, as None says that the option was not given
Threshold = Annotated[float, Parsed(_threshold, "{!r} must be a number, or none")]
Probability = Annotated[float, click.FloatRange(0, 1, min_open=True, max_open=True)]


@dataclass(frozen=True)
class WhisperOptions:
    """Transcripts of Whisper models; None or empty: not given. NaN: no threshold.

    Raises UsageError for options that contradict each other.

    Attributes:
        forms: Write text, subtitles, a table or JSON with times, as openai-whisper does. With --output-dir
            each recording gets a file, and the option may be given several times.
        timestamps: segment: the model says when each sentence begins and ends. word: and each word is aligned
            with the sound. none: every window is one segment.
        windows: sequential: a window begins where the last sentence of the one before ended, and may see its
            text. batched: the recording is cut beforehand, and all windows are decoded at once; best with
            --vad.
        has_vad: Transcribe only where somebody speaks.
        vad_threshold: With --vad: speech begins at this probability.
        vad_min_silence: With --vad: a shorter pause does not end a stretch of speech.
        vad_padding: With --vad: kept before and behind each stretch of speech.
        vad_max_speech: With --vad: a longer stretch of speech is cut, at a short pause if there is one.
        live: Take the sound on stdin as it comes, and write segments as they settle. The sound is WAV, or raw
            samples of one channel: 16-bit (s16le), floats (f32le), or G.711 (mulaw, alaw). A segment settles
            when somebody has paused; the options of --vad say what a pause is.
        rate: With --live and raw samples: so many come in a second.
        initial_prompt: Text that the first window sees as if it had been said before, such as names.
        first_words: Text with which the first window's text begins. That window sees no --hotwords.
        hallucination_silence: With --timestamps word: skip text that looks invented between longer pauses
            than this.
        hotwords: Words that every window sees before its text.
        no_previous_text: No window sees the text of the one before. A model that repeats itself then stops
            sooner.
        temperatures: Tried in this order until a window's text passes both thresholds below. 0 searches,
            others sample. (--temperature divides the logits of the search.)
        best_of: Samples at each temperature above 0; the most probable is taken.
        compression_ratio_threshold: Try the next temperature if the text compresses better, which repetitions
            do.
        log_prob_threshold: Try the next temperature if the mean log-probability of the tokens is lower.
        no_speech_threshold: Skip a window if the model says with a higher probability that nobody speaks, and
            its text does not pass --log-prob-threshold.
    """

    forms: tuple[Literal["txt", "srt", "vtt", "tsv", "json", "jsonl"], ...] = option(
        default=(), flag="--format", is_common=True
    )
    timestamps: Literal["none", "segment", "word"] | None = option(shows="segment", is_common=True)
    windows: Literal["sequential", "batched"] | None = option(shows="sequential")
    has_vad: bool = option(default=False, flag="--vad", is_common=True)
    vad_threshold: Probability | None = option("P", shows="0.5")
    vad_min_silence: NotNegative | None = option(
        "SECONDS", shows=f"2, or {WINDOW_PAUSE} with --windows batched, or 0.5 with --live"
    )
    vad_padding: NotNegative | None = option("SECONDS", shows="0.4, or 0.25 with --live")
    vad_max_speech: Positive | None = option(
        "SECONDS", shows=f"{WINDOW:g} with --windows batched or --live"
    )
    live: Literal["wav", "s16le", "f32le", "mulaw", "alaw"] | None = option(is_common=True)
    rate: Count | None = option("HZ", shows="16000", is_common=True)
    initial_prompt: str | None = option("TEXT")
    first_words: str | None = option("TEXT")
    hallucination_silence: Positive | None = option("SECONDS", shows="off")
    hotwords: str | None = option("TEXT")
    no_previous_text: bool = False
    temperatures: Temperatures | None = option("T,...", shows="0,0.2,0.4,0.6,0.8,1")
    best_of: Count | None = option("N", shows="5")
    compression_ratio_threshold: Threshold | None = option("X|none", shows="2.4")
    log_prob_threshold: Threshold | None = option("X|none", shows="-1")
    no_speech_threshold: Threshold | None = option("P|none", shows="0.6")

    def __post_init__(self) -> None:
        if self.hallucination_silence is not None and self.timestamps != "word":
            raise click.UsageError("--hallucination-silence needs --timestamps word")
        if self.windows == "batched":
            refuse(self, ("first_words", "hallucination_silence"), "needs --windows sequential")
        if not self.has_vad and self.live is None:
            refuse(self, VAD, "needs --vad")
        if self.live is not None:
            refuse(self, ("first_words",), "is for recordings; --live takes --initial-prompt")
        if self.live in (None, "wav"):
            refuse(self, ("rate",), "needs --live with raw samples, such as --live s16le")

    def transcription(
        self, language: str | None, task: str | None, max_new_tokens: int | None
    ) -> TranscriptionOptions:
        """Return what the library is asked for. Raises UsageError for a value that it refuses."""
        from pybeam.speech.whisper import TranscriptionOptions

        same = ("windows", "initial_prompt", "hotwords", "temperatures", "best_of")
        thresholds = ("compression_ratio_threshold", "log_prob_threshold", "no_speech_threshold")
        asked: dict[str, Any] = given(self, same)
        asked |= {
            name: None if value != value else value
            for name, value in given(self, thresholds).items()
        }
        with as_usage_errors():
            return TranscriptionOptions(
                language=language,
                task=task,
                timestamps=self.timestamps != "none",
                words=self.timestamps == "word",
                condition_on_previous_text=not self.no_previous_text,
                max_new_tokens=max_new_tokens,
                prefix=self.first_words,
                hallucination_silence_threshold=self.hallucination_silence,
                **asked,
            )

    def speech_rules(self) -> SpeechRules | None:
        """Return how stretches of speech are found; None: all is speech. Raises UsageError if wrong."""
        from pybeam.speech.utterances import LIVE_RULES
        from pybeam.speech.voice_activity import SpeechRules

        if not self.has_vad and self.live is None:
            return None
        asked = {name.removeprefix("vad_"): value for name, value in given(self, VAD).items()}
        if self.live is not None:
            plain = LIVE_RULES
        elif self.windows == "batched":
            plain = SpeechRules(max_speech=WINDOW, min_silence=WINDOW_PAUSE)
        else:
            plain = SpeechRules()
        with as_usage_errors("--vad" if self.live is None else "--live"):
            return replace(plain, **asked)


WHISPER = section("Transcripts of Whisper models, for recordings of any length", WhisperOptions)
