"""The models of a server: their names, their languages, and their texts as ids."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from pybeam.arguments import ArgumentError
from pybeam.decoder import Decoder
from pybeam.server.errors import APIError
from pybeam.server.gates import Gate
from pybeam.server.languages import code_of
from pybeam.serving import ServedResult
from pybeam.serving.transcripts import ServedTranscripts
from pybeam.speech import Transcription, load_feature_extractor, load_transcription
from pybeam.text.chat import ChatTemplate
from pybeam.text.deltas import text_behind
from pybeam.text.tokenizer import Tokenizer, Tokenizers, load_vocabularies

# how a name says its languages: es-en, bible-es-en, opus-mt-es-en
PAIR = re.compile(r"(?:.*[-_])?([a-z]{2,3})-([a-z]{2,3})")
# pairs of languages whose tokenizers are kept
MAX_TOKENIZERS = 64


def load_tokenizers(directory: str) -> Tokenizers | None:
    """Load the tokenizers of a folder; None: there are no tokenizer's files."""
    try:
        return Tokenizers(directory)
    except FileNotFoundError:
        return None


def for_any_language(tokenizers: Tokenizers | None) -> Tokenizer | None:
    """Return a tokenizer for target texts, whatever the languages; None: there is none."""
    if tokenizers is None:
        return None
    try:
        return tokenizers.of()
    except ArgumentError:  # it must be told languages
        language = tokenizers.languages[1][0]
        return tokenizers.of(language, language)


class Languages(NamedTuple):
    """The languages that a model translates, by its own names. None: any language, or unknown."""

    sources: tuple[str, ...] | None
    targets: tuple[str, ...] | None

    def has(self, source: str | None, target: str | None) -> bool:
        """Whether the model may translate so; None: the request does not say."""
        pairs = ((source, self.sources), (target, self.targets))
        return all(
            one is None or known is None or own_name(one, known) is not None for one, known in pairs
        )


def own_name(language: str, known: Sequence[str]) -> str | None:
    """Return the name of a language among a model's own, which have its code or are it; None: none does."""
    if language in known:
        return language
    code = code_of(language)
    return next((one for one in known if code_of(one) == code), None)


class ServedModel:
    """A decoder, and the files around it that turn texts and recordings into sources.

    Args:
        name: what requests call it.
        directory: the files.
        decoder: the model and its search.
        tokenizers: for texts of the model; None: it has ids alone.
        transcripts: transcribe recordings of any length; None: each is one source.
        others: the same model and search on other devices.
    """

    def __init__(
        self,
        name: str,
        directory: str,
        decoder: Decoder,
        tokenizers: Tokenizers | None,
        transcripts: ServedTranscripts | None = None,
        others: Sequence[Decoder] = (),
    ) -> None:
        self.name, self.directory, self.decoder = name, directory, decoder
        self.decoders = decoder, *others
        # requests that were given it stay within until they are answered
        self.gate, self.created = Gate(), int(time.time())
        self.transcripts = transcripts
        # for target texts
        self.plain_tokenizer = for_any_language(tokenizers)
        self.takes_sound = decoder.model.takes_features
        tags = tokenizers.languages if tokenizers else ([], [])
        self.has_tags = bool(tags[1])
        named = PAIR.fullmatch(name)
        self._continues = tokenizers is not None and tokenizers.reads_prompts
        # a language model translates nothing, unless its name says so
        unnamed = () if self._continues else None
        sources, targets = (
            tuple(tags[i]) or (named and (named[i + 1],)) or unnamed for i in range(2)
        )
        self.languages = Languages(sources, targets)
        self._takes_source_tag = bool(tags[0])
        vocabularies = load_vocabularies(directory) or ({}, {})
        self._pieces = {i: piece for piece, i in vocabularies[1].items()}
        # what turns recordings into sources
        self.extractor = load_feature_extractor(directory) if self.takes_sound else None
        # Kaldi's filter banks have 100 frames in a second
        rate = self.extractor.sampling_rate if self.extractor else 1
        self.frame_seconds = getattr(self.extractor, "hop_length", rate / 100) / rate
        self._between = None
        if tokenizers is not None:
            self._between = lru_cache(MAX_TOKENIZERS)(tokenizers.of)

    @property
    def is_idle(self) -> bool:
        """Whether no request has it."""
        return not self.gate.num_active

    def tokenizer(self, source: str | None = None, target: str | None = None) -> Tokenizer:
        """Return the tokenizer for these languages.

        Raises:
            APIError: the model does not know them, or has no tokenizer.
        """
        own: list[str | None] = []
        for field, language, known in zip(
            ("source_lang", "target_lang"), (source, target), self.languages, strict=True
        ):
            found = language
            if language is not None and known is not None:
                found = own_name(language, known)
                if found is None:
                    problem = f"the model {self.name!r} does not know the language {language!r}"
                    raise APIError(422, problem, field)
            own.append(found)
        if self._between is None:
            raise APIError(422, f"the model {self.name!r} has no tokenizer; send token ids")
        try:
            return self._between(
                own[0] if self._takes_source_tag else None, own[1] if self.has_tags else None
            )
        except ArgumentError as error:
            raise APIError(422, f"`{error.name}` {error.problem}", error.name) from error

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens; "" for a model without a tokenizer."""
        return "" if self.plain_tokenizer is None else self.plain_tokenizer.decode(tokens)

    def continuation(self, prompt: Sequence[int]) -> Callable[[Sequence[int]], str]:
        """Return what makes texts of tokens that are generated for a prompt.

        If the model continues prompts, the space between both belongs to the text.
        """
        if self.plain_tokenizer is None or not self._continues:
            return self.text
        return partial(text_behind, self.plain_tokenizer, prompt)

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The template that makes prompts of messages.

        Raises:
            ImportError, ValueError: there is none, or it cannot be read.
        """
        if self.plain_tokenizer is None or not self._continues:
            raise ValueError(
                f"the model {self.name!r} must be a language model to answer messages, but is none"
            )
        return ChatTemplate.load(Path(self.directory), self.plain_tokenizer)

    def best_text(self, served: ServedResult) -> str:
        """Return the text of the best hypothesis; "" if there is none."""
        hypotheses = served.result.hypotheses
        return self.text(hypotheses[0].tokens) if hypotheses else ""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token as its vocabulary has it, the number where there is none."""
        return [self._pieces.get(token, str(token)) for token in tokens]

    def transcription(self, language: str | None, task: str | None) -> Transcription:
        """Return how outputs begin for this language. Raises ValueError if the model does not know it."""
        return load_transcription(self.directory, language, task)


class ServedModels:
    """All models of a server that requests are given.

    Args:
        models: by name.
    """

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = dict(models)

    def put(self, model: ServedModel) -> None:
        """Let requests have this model from now on, in place of the one that has its name."""
        self._models[model.name] = model

    def remove(self, name: str) -> None:
        """Let no request have the model of this name any more."""
        del self._models[name]

    def __iter__(self):
        return iter(self._models.values())

    def pick(
        self,
        name: str | None,
        source: str | None = None,
        target: str | None = None,
        *,
        takes_sound: bool | None = None,
    ) -> ServedModel:
        """Return the model of this name, or else the first that takes these languages.

        `takes_sound` says what the source is; None: either.

        Raises:
            APIError: there is none.
        """
        if name is not None:
            return self._named(name, takes_sound)
        fitting = [one for one in self if takes_sound in (None, one.takes_sound)]
        if not fitting:
            kind = "recordings" if takes_sound else "text"
            raise APIError(404, f"no model here takes {kind}", "model")
        for model in fitting:
            if model.languages.has(source, target):
                return model
        raise APIError(
            400,
            f"no model here translates from {source!r} to {target!r}; "
            "GET /languages lists what there is",
            "target_lang" if source is None else "source_lang",
        )

    def _named(self, name: str, takes_sound: bool | None) -> ServedModel:
        model = self._models.get(name)
        if model is None:
            names = ", ".join(self._models)
            problem = f"`model` must be one of {names}" if names else "no model is loaded"
            raise APIError(404, problem, "model", code="model_not_found")
        if takes_sound not in (None, model.takes_sound):
            kind = "recordings" if model.takes_sound else "text"
            raise APIError(400, f"the model {name!r} takes {kind}", "model")
        return model

    def targets(self) -> dict[str, list[str]]:
        """Return the codes of target languages of each source language that the models name."""
        found: dict[str, set[str]] = {}
        for model in self:
            if not model.takes_sound and None not in model.languages:
                targets = set(map(code_of, model.languages.targets or ()))
                for source in map(code_of, model.languages.sources or ()):
                    found.setdefault(source, set()).update(targets - {source})
        return {source: sorted(targets) for source, targets in sorted(found.items())}
