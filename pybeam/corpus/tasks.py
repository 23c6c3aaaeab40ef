"""What is done with a line: it is translated, scored or, as the name of a recording, transcribed."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pybeam.corpus import forms
from pybeam.corpus.forms import Form, Format, Pieces
from pybeam.corpus.parts import Line, Unreadable
from pybeam.request import Request
from pybeam.text.tokenizer import Tokenizer, load_vocabularies

if TYPE_CHECKING:
    from pybeam.processors import Processor
    from pybeam.search.algorithms import Algorithm

# a request, and a warning or ""; raises ValueError or OSError for a line that cannot become one
MakeRequest = Callable[[Line], tuple[Request, str]]


class Task(ABC):
    """What is done with every line. A subclass is a frozen dataclass, which pickles."""

    num_fields: ClassVar[int] = 1
    takes_sound: ClassVar[bool] = False
    wants_log_probs: ClassVar[bool] = False
    item: ClassVar[str] = "line"

    @abstractmethod
    def requests(self, directory: str, tokenizer: Tokenizer, limit: int | None) -> MakeRequest:
        """Return the function that makes requests of lines.

        Args:
            directory: the model's, or the first model's.
            tokenizer: its tokenizer.
            limit: tokens that a source may have; None: any number.
        """

    def processors(self, directory: str) -> Sequence[Processor]:
        """Return what must stand in the algorithm besides what the user asks for.

        Raises:
            OSError, ValueError: the model's files do not say it, or the model cannot do the task.
        """
        return ()

    def format(
        self, form: Form, directory: str, tokenizer: Tokenizer, algorithm: Algorithm
    ) -> Format:
        """Return the function that writes results."""
        decode = tokenizer.decode
        if form.is_json:
            return forms.json_line(decode, _pieces(directory) if form.has_alignment else None)
        if writes_many(algorithm):
            return forms.n_best_lines(decode)
        return forms.best_line(decode, form.has_scores)


@dataclass(frozen=True)
class Translate(Task):
    """A line is a text to translate."""

    def requests(self, directory: str, tokenizer: Tokenizer, limit: int | None) -> MakeRequest:
        def make(line: Line) -> tuple[Request, str]:
            return text_request(tokenizer, limit, line[0])

        return make


@dataclass(frozen=True)
class Score(Task):
    """A line is a text and its translation, which is scored."""

    num_fields: ClassVar[int] = 2
    wants_log_probs: ClassVar[bool] = True

    def requests(self, directory: str, tokenizer: Tokenizer, limit: int | None) -> MakeRequest:
        harm = "its score is that of a translation of its beginning"

        def make(line: Line) -> tuple[Request, str]:
            source, target = line
            request, warning = text_request(tokenizer, limit, source, harm)
            try:
                text = text_of(target)
            except ValueError as error:
                raise ValueError(f"the target: {error}") from error
            return dataclasses.replace(request, target=tokenizer.encode_target(text)), warning

        return make

    def format(
        self, form: Form, directory: str, tokenizer: Tokenizer, algorithm: Algorithm
    ) -> Format:
        return forms.score_json_line(tokenizer.decode) if form.is_json else forms.score_line


@dataclass(frozen=True)
class Transcribe(Task):
    """A line is the name of a WAV file. An empty line is an empty recording.

    Args:
        language, task: those of `pybeam.speech.load_transcription`.
    """

    language: str | None = None
    task: str | None = None

    takes_sound: ClassVar[bool] = True
    item: ClassVar[str] = "file"

    def processors(self, directory: str) -> Sequence[Processor]:
        from pybeam.speech import load_transcription

        return load_transcription(directory, self.language, self.task).processors

    def requests(self, directory: str, tokenizer: Tokenizer, limit: int | None) -> MakeRequest:
        from pybeam.speech import load_feature_extractor, load_transcription, read_wav

        extract = load_feature_extractor(directory)
        prefix = [
            *tokenizer.prefix,
            *load_transcription(directory, self.language, self.task).prefix,
        ]

        def make(line: Line) -> tuple[Request, str]:
            name = text_of(line[0])
            features = torch.zeros(0, extract.num_mel_bins)  # [E, F]
            if name:
                features = extract(read_wav(name, extract.sampling_rate))
            return Request(features, prefix=prefix), ""

        return make


def writes_many(algorithm: Algorithm) -> bool:
    """Whether several hypotheses are written per source."""
    return algorithm.n_best * algorithm.num_groups > 1


def text_of(field: bytes | Unreadable) -> str:
    """Return the text of a field, without spaces around it.

    Raises:
        ValueError: it is not UTF-8, or there is no text.
    """
    if isinstance(field, Unreadable):
        raise ValueError(field.reason)
    try:
        return field.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"expected UTF-8, but byte {error.start + 1} is 0x{field[error.start]:02x}; convert it, for "
            "example with `iconv -f LATIN1 -t UTF-8`"
        ) from error


def cut(tokens: list[int], frame: list[int], limit: int) -> list[int]:
    """Cut a source to `limit` tokens, but keep the tokens that end every source (the end of `frame`)."""
    num_last = 0
    while num_last < len(frame) and tokens[-1 - num_last] == frame[-1 - num_last]:
        num_last += 1
    return tokens[: limit - num_last] + tokens[len(tokens) - num_last :]


def text_request(
    tokenizer: Tokenizer,
    limit: int | None,
    field: bytes | Unreadable,
    harm: str = "its translation lacks the end",
) -> tuple[Request, str]:
    """Return a request of a text, and a warning if it is cut. An empty text is an empty source.

    Args:
        limit: tokens that it may have; None: any number.
        harm: what cutting does, for the warning.

    Raises:
        ValueError: the field is no UTF-8 text.
    """
    text, warning = text_of(field), ""
    if not text:
        return Request([]), ""
    tokens = tokenizer.encode(text)
    if limit is not None and len(tokens) > limit:
        warning = (
            f"{len(tokens)} tokens are more than the model's limit of {limit}; "
            f"the line is cut, so {harm}"
        )
        tokens = cut(tokens, tokenizer.encode(""), limit)
    # the id comes back with the result, which may show the source again
    return Request(tokens, prefix=tokenizer.prefix, id=tokens), warning


def _pieces(directory: str) -> Pieces:
    """Return the texts of source ids and target ids."""
    source, target = load_vocabularies(directory) or ({}, {})
    return {i: piece for piece, i in source.items()}, {i: piece for piece, i in target.items()}
