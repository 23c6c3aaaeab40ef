"""The tasks of a line: it is translated, scored, answered with items, or names a recording."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch

from pybeam.arguments import ArgumentError
from pybeam.corpus import forms
from pybeam.corpus.forms import Form, Format, Pieces
from pybeam.corpus.parts import Line, Unreadable
from pybeam.request import Request
from pybeam.text import units
from pybeam.text.tokenizer import Tokenizer, load_vocabularies

if TYPE_CHECKING:
    from pybeam.catalogue.items import AllowedItems
    from pybeam.processors import Processor
    from pybeam.search.algorithms import Algorithm


@dataclass(frozen=True)
class Joined:
    """A line with several requests, whose translations fill the gaps of a template."""

    template: units.Template
    requests: tuple[Request, ...]


# a request or several, and a warning or ""; raises ValueError or OSError for a line that cannot become one
MakeRequest = Callable[[Line], tuple[Request | Joined, str]]


class Task(ABC):
    """The task for every line. A subclass is a frozen dataclass, which pickles."""

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
            pieces = _pieces(directory) if form.has_alignment else None
            return partial(forms.json_line, decode, pieces)
        if writes_many(algorithm):
            return partial(forms.n_best_lines, decode)
        return partial(forms.best_line, decode, form.has_scores)


@dataclass(frozen=True)
class Translate(Task):
    """A line is a text to translate, or several.

    Args:
        unit: "line", or "document", which is translated sentence by sentence.
        sentence_lang: that of `pybeam.text.units.sentences`.
        protect: patterns of `pybeam.text.units.protected`.
        max_source_length: tokens that a source may have; None: as many as the model takes.
        long_sources: what becomes of a longer one: "cut", "split" (`pybeam.text.units.at_most`) or "skip",
            which makes the line fail.
        has_phrases: whether a line has a second field, with phrases between tabs, all of which the
            translation must contain; see `pybeam.processors.must_contain`.
    """

    unit: str = "line"
    sentence_lang: str = "en"
    protect: tuple[str, ...] = ()
    max_source_length: int | None = None
    long_sources: str = "cut"
    has_phrases: bool = False

    @property
    def joins(self) -> bool:
        """Whether a text may be put together from several translations."""
        return self.unit == "document" or bool(self.protect) or self.long_sources == "split"

    def requests(self, directory: str, tokenizer: Tokenizer, limit: int | None) -> MakeRequest:
        limit = self._limit(limit)
        split = self._split(tokenizer, limit)
        skips = self.long_sources == "skip"

        def make(line: Line) -> tuple[Request | Joined, str]:
            if self.has_phrases:
                request, warning = text_request(tokenizer, limit, line[0], skips=skips)
                return with_phrases(request, line[1], tokenizer), warning
            if not self.joins:
                return text_request(tokenizer, limit, line[0], skips=skips)
            template = split(text_of(line[0]))
            # a line without a text has a result too
            made = [
                text_request(tokenizer, limit, text.encode(), skips=skips)
                for text in template.texts or ("",)
            ]
            warnings = dict.fromkeys(warning for _, warning in made if warning)
            return Joined(template, tuple(request for request, _ in made)), "; ".join(warnings)

        return make

    def processors(self, directory: str) -> Sequence[Processor]:
        if not self.has_phrases:
            return ()
        from pybeam.processors import must_contain

        if self.joins:
            raise ValueError(
                "phrases that translations must contain cannot be combined with documents, protected texts "
                "or long sources that are split: nobody says which part has which phrase; leave one of them "
                "out"
            )
        return (must_contain(),)

    def format(
        self, form: Form, directory: str, tokenizer: Tokenizer, algorithm: Algorithm
    ) -> Format:
        if not self.joins:
            return super().format(form, directory, tokenizer, algorithm)
        if form.is_json or form.has_scores or writes_many(algorithm):
            raise ValueError(
                "several outputs for each line, scores and JSON cannot be combined with documents, "
                "protected texts or long sources that are split, which put a line together from several "
                "translations; leave one of them out"
            )
        return partial(forms.joined_line, tokenizer.decode)

    def _limit(self, of_model: int | None) -> int | None:
        own = self.max_source_length
        if own is not None and of_model is not None and own > of_model:
            raise ArgumentError(
                "max_source_length",
                f"must be at most the model's limit of {of_model}, but is {own}",
            )
        return of_model if own is None else own

    def _split(self, tokenizer: Tokenizer, limit: int | None) -> units.Split:
        splits: list[units.Split] = []
        try:
            splits += [units.protected(pattern) for pattern in self.protect]
        except ArgumentError as error:
            raise ArgumentError("protect", error.problem) from None
        if self.unit == "document":
            splits.append(units.sentences(self.sentence_lang))
        if self.long_sources == "split" and limit is not None:
            splits.append(units.at_most(limit, lambda text: len(tokenizer.encode(text))))
        return units.chain(splits)


@dataclass(frozen=True)
class Score(Task):
    """A line is a text and its translation, which is scored."""

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
        return (
            partial(forms.score_json_line, tokenizer.decode) if form.is_json else forms.score_line
        )


@dataclass(frozen=True)
class Transcribe(Task):
    """A line is the name of a sound file. An empty line is an empty recording.

    Args:
        language, task: those of `pybeam.speech.load_transcription`.
    """

    language: str | None = None
    task: str | None = None

    takes_sound: ClassVar[bool] = True
    item: ClassVar[str] = "file"

    def processors(self, directory: str) -> Sequence[Processor]:
        from pybeam.speech import load_transcription

        # what cannot be asked is said before the model is loaded, whose settings ban tokens
        load_transcription(directory, self.language, self.task)
        return ()

    def requests(self, directory: str, tokenizer: Tokenizer, limit: int | None) -> MakeRequest:
        from pybeam.speech import load_feature_extractor, load_transcription, read_sound

        extract = load_feature_extractor(directory)
        prefix = [
            *tokenizer.prefix,
            *load_transcription(directory, self.language, self.task).prefix,
        ]

        def make(line: Line) -> tuple[Request, str]:
            name = text_of(line[0])
            features = torch.zeros(0, extract.num_mel_bins)  # [E, F]
            if name:
                features = extract(read_sound(name, extract.sampling_rate))
            return Request(features, prefix=prefix or None), ""

        return make


@dataclass(frozen=True)
class Retrieve(Task):
    """A line is a query, for which items of a catalogue are found.

    Args:
        rule: the catalogue and a filter, from `pybeam.catalogue.allowed_items`.
    """

    rule: AllowedItems

    def processors(self, directory: str) -> Sequence[Processor]:
        return (self.rule,)

    def requests(self, directory: str, tokenizer: Tokenizer, limit: int | None) -> MakeRequest:
        harm = "the items found are those of its beginning"
        return lambda line: text_request(tokenizer, limit, line[0], harm)

    def format(
        self, form: Form, directory: str, tokenizer: Tokenizer, algorithm: Algorithm
    ) -> Format:
        return partial(forms.items_json_line, tokenizer.decode)


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
    *,
    skips: bool = False,
) -> tuple[Request, str]:
    """Return a request of a text, and a warning if it is cut. An empty text is an empty source.

    Args:
        limit: tokens that it may have; None: any number.
        harm: what cutting does, for the warning.
        skips: whether a text that is too long is an error.

    Raises:
        ValueError: the field is no UTF-8 text, or too long.
    """
    text, warning = text_of(field), ""
    if not text:
        return Request([]), ""
    tokens = tokenizer.encode(text)
    if limit is not None and len(tokens) > limit:
        too_long = f"{len(tokens)} tokens are more than the limit of {limit}"
        if skips:
            raise ValueError(f"{too_long}; the line is skipped")
        warning = f"{too_long}; the line is cut, so {harm}"
        tokens = cut(tokens, tokenizer.encode(""), limit)
    # the id comes back with the result, which may show the source again
    return Request(tokens, id=tokens), warning


def with_phrases(request: Request, field: bytes | Unreadable, tokenizer: Tokenizer) -> Request:
    """Return the request of an output that contains the phrases between the tabs of a field.

    Raises:
        ValueError: the field is no UTF-8 text, or there are too many phrases.
    """
    # few lines have any
    from pybeam.processors import must_contain

    phrases = [text for text in text_of(field).split("\t") if text.strip()]
    return dataclasses.replace(request, processors=[must_contain(phrases, tokenizer)])


def _pieces(directory: str) -> Pieces:
    """Return the texts of source ids and target ids."""
    source, target = load_vocabularies(directory) or ({}, {})
    return {i: piece for piece, i in source.items()}, {i: piece for piece, i in target.items()}
