"""Words, segments and whole transcripts of a recording, and its stretches of speech."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a recording, such as one in which somebody speaks.

    Attributes:
        start, end: seconds from the beginning of the recording.

    Raises:
        ValueError: it has no length, or begins before the recording.
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(
                f"a stretch must have 0 <= start < end, but is {self.start} to {self.end} s"
            )


@dataclass(frozen=True, slots=True)
class Word:
    """A word and when it is said.

    Attributes:
        text: the word with the space before it and the punctuation that belongs to it.
        start, end: seconds from the beginning of the recording.
        probability: the mean probability of its tokens.
    """

    text: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a transcript, such as a sentence. Some of its numbers are those of its window.

    Attributes:
        start, end: seconds from the beginning of the recording.
        text: as the tokenizer gives it, with the space before it and without special tokens.
        tokens: ids, timestamps included, EOS not.
        average_log_prob: of the window: the sum of its tokens' log-probabilities, EOS included, divided by
            the number of tokens, EOS included.
        no_speech_probability: of the window: of the token that says that nobody speaks. None: the model has
            no such token.
        temperature: of the window: 0.0 if its text was searched for, else the temperature at which it was
            sampled.
        compression_ratio: of the window: bytes of its text divided by bytes that zlib makes of it.
        words: the words, if they were asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    average_log_prob: float
    no_speech_probability: float | None
    temperature: float
    compression_ratio: float
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Transcript:
    """All that is heard in a recording.

    Attributes:
        language: such as "en"; None: the model knows no languages.
        language_probability: of the language that was detected; None: it was given.
        duration: seconds.
        segments: in the order of time.
    """

    language: str | None
    language_probability: float | None
    duration: float
    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """The texts of the segments, joined."""
        return "".join(segment.text for segment in self.segments).strip()
