"""Options for transcripts of Whisper models: times, long recordings, voice activity, prompts, fallbacks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from pybeam.cli.options.errors import as_usage_errors, flag
from pybeam.cli.options.sections import Section, given, option

if TYPE_CHECKING:
    from pybeam.speech.voice_activity import SpeechRules
    from pybeam.speech.whisper import TranscriptionOptions

FORMS = ("txt", "srt", "vtt", "tsv", "json")
# seconds of a window, and of the pauses at which `--windows batched` cuts; both as faster-whisper has them
WINDOW, WINDOW_PAUSE = 30.0, 0.16


class Temperatures(click.ParamType):
    """Temperatures joined by commas."""

    name = "temperatures"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} must be numbers joined by commas, such as 0,0.4,0.8", param, ctx)


class Threshold(click.ParamType):
    """A number, or `none`, which is NaN here, as None says that the option was not given."""

    name = "threshold"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            number = float("nan" if value == "none" else value)
        except ValueError:
            self.fail(f"{value!r} must be a number, or none", param, ctx)
        if value != "none" and number != number:
            self.fail(f"{value!r} must be a number, or none", param, ctx)
        return number


WHISPER = Section(
    "Transcripts of Whisper models, for recordings of any length",
    [
        option(
            "--format",
            "forms",
            multiple=True,
            type=click.Choice(FORMS),
            help="Write text, subtitles, a table or JSON with times, as openai-whisper does. With "
            "--output-dir each recording gets a file, and the option may be given several times.",
        ),
        option(
            "--timestamps",
            type=click.Choice(["none", "segment", "word"]),
            show_default="segment",
            help="segment: the model says when each sentence begins and ends. word: and each word is aligned "
            "with the sound. none: every window is one segment.",
        ),
        option(
            "--windows",
            type=click.Choice(["sequential", "batched"]),
            show_default="sequential",
            help="sequential: a window begins where the last sentence of the one before ended, and may see "
            "its text. batched: the recording is cut beforehand, and all windows are decoded at once; best "
            "with --vad.",
        ),
        option("--vad", "has_vad", is_flag=True, help="Transcribe only where somebody speaks."),
        option(
            "--vad-threshold",
            type=click.FloatRange(0, 1, min_open=True, max_open=True),
            metavar="P",
            show_default="0.5",
            help="With --vad: speech begins at this probability.",
        ),
        option(
            "--vad-min-silence",
            type=click.FloatRange(0),
            metavar="SECONDS",
            show_default=f"2, or {WINDOW_PAUSE} with --windows batched",
            help="With --vad: a shorter pause does not end a stretch of speech.",
        ),
        option(
            "--vad-padding",
            type=click.FloatRange(0),
            metavar="SECONDS",
            show_default="0.4",
            help="With --vad: kept before and behind each stretch of speech.",
        ),
        option(
            "--initial-prompt",
            metavar="TEXT",
            help="Text that the first window sees as if it had been said before, such as names.",
        ),
        option(
            "--first-words",
            metavar="TEXT",
            help="Text with which the first window's text begins. That window sees no --hotwords.",
        ),
        option(
            "--hallucination-silence",
            type=click.FloatRange(0, min_open=True),
            metavar="SECONDS",
            show_default="off",
            help="With --timestamps word: skip text that looks invented between longer pauses than this.",
        ),
        option("--hotwords", metavar="TEXT", help="Words that every window sees before its text."),
        option(
            "--no-previous-text",
            is_flag=True,
            help="No window sees the text of the one before. A model that repeats itself then stops sooner.",
        ),
        option(
            "--temperatures",
            type=Temperatures(),
            metavar="T,...",
            show_default="0,0.2,0.4,0.6,0.8,1",
            help="Tried in this order until a window's text passes both thresholds below. 0 searches, others "
            "sample. (--temperature divides the logits of the search.)",
        ),
        option(
            "--best-of",
            type=click.IntRange(1),
            metavar="N",
            show_default="5",
            help="Samples at each temperature above 0; the most probable is taken.",
        ),
        option(
            "--compression-ratio-threshold",
            type=Threshold(),
            metavar="X|none",
            show_default="2.4",
            help="Try the next temperature if the text compresses better, which repetitions do.",
        ),
        option(
            "--log-prob-threshold",
            type=Threshold(),
            metavar="X|none",
            show_default="-1",
            help="Try the next temperature if the mean log-probability of the tokens is lower.",
        ),
        option(
            "--no-speech-threshold",
            type=Threshold(),
            metavar="P|none",
            show_default="0.6",
            help="Skip a window if the model says with a higher probability that nobody speaks, and its text "
            "does not pass --log-prob-threshold.",
        ),
    ],
)


@dataclass(frozen=True)
class WhisperOptions:
    """The options of `WHISPER`; None or empty: not given. NaN: no threshold."""

    forms: tuple[str, ...]
    timestamps: str | None
    windows: str | None
    has_vad: bool
    vad_threshold: float | None
    vad_min_silence: float | None
    vad_padding: float | None
    initial_prompt: str | None
    hotwords: str | None
    first_words: str | None
    hallucination_silence: float | None
    no_previous_text: bool
    temperatures: tuple[float, ...] | None
    best_of: int | None
    compression_ratio_threshold: float | None
    log_prob_threshold: float | None
    no_speech_threshold: float | None

    def check(self) -> None:
        """Raise UsageError for options that contradict each other."""
        if self.hallucination_silence is not None and self.timestamps != "word":
            raise click.UsageError("--hallucination-silence needs --timestamps word")
        if self.windows == "batched":
            for name in given(self, ("first_words", "hallucination_silence")):
                raise click.UsageError(f"{flag(name)} needs --windows sequential")
        if not self.has_vad:
            for name in given(self, ("vad_threshold", "vad_min_silence", "vad_padding")):
                raise click.UsageError(f"{flag(name)} needs --vad")

    def refuse(self, reason: str) -> None:
        """Raise UsageError if one of these options was given."""
        names = {"forms": "--format", "has_vad": "--vad"}
        for name in given(self, [field.name for field in fields(self)]):
            raise click.UsageError(f"{names.get(name, flag(name))} {reason}")

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
        from pybeam.speech.voice_activity import SpeechRules

        if not self.has_vad:
            return None
        asked: dict[str, Any] = {
            "threshold": self.vad_threshold,
            "min_silence": self.vad_min_silence,
            "padding": self.vad_padding,
        }
        asked = {name: value for name, value in asked.items() if value is not None}
        if self.windows == "batched":
            asked = {"max_speech": WINDOW, "min_silence": WINDOW_PAUSE} | asked
        with as_usage_errors("--vad"):
            return SpeechRules(**asked)
