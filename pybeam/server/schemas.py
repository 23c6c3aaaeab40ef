"""The bodies of requests, as the OpenAPI page shows them, and what they ask the library for."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from pybeam import limits, processors
from pybeam import scoring as rules
from pybeam.processors.sampling import Sample
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.server.errors import APIError, refused
from pybeam.server.grammars import Asked, asked
from pybeam.server.phrases import LONGEST_PHRASE, MOST_PHRASES
from pybeam.speech.whisper.timestamps import whisper_timestamps

# of values that are written again; pydantic writes some 250 lists in each other, and Python some 1000
MAX_DEPTH = 64


def writable(value: Any) -> Any:
    """Check a value of JSON of any type that is written again, into a prompt or an answer.

    Raises:
        ValueError: it is nested too deep, or has half a character.
    """
    level, depth = [value], 0
    while level := [part for one in level for part in _parts(one)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"must be nested at most {MAX_DEPTH} deep")
    _unicode(json.dumps(value, ensure_ascii=False))
    return value


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be Unicode, but has half a character") from None
    return text


# JSON can spell a surrogate without its other half, which no encoding can write
Text = Annotated[str, AfterValidator(_unicode)]
T = TypeVar("T")
# a mistake ends it: a body of a megabyte may have half a million, and each has an error of its own
Listed = Annotated[list[T], Field(fail_fast=True)]
Ids = Listed[Annotated[int, Field(ge=0, lt=1 << 31)]]
Count = Annotated[int, Field(ge=1, le=4096)]
Length = Annotated[int, Field(ge=1, lt=1 << 20)]
# the values that a server which searches takes, too: clients that sample send them unasked
NEUTRAL = {"temperature": (0, 1), "top_k": (0,), "top_p": (1,), "min_p": (0,)}


# processors with arguments that JSON has not
NOT_IN_JSON = {"Processor", "allowed_tokens", "constraint", "from_function", "gumbel"}
# and those of tokenizers and of files, for which bodies have fields of their own, or none
NOT_IN_JSON |= {"grammar", "json_schema", "language_model", "must_contain", "regex"}


# each of at most 256 characters
Phrases = Annotated[
    Listed[Annotated[Text, Field(min_length=1, max_length=LONGEST_PHRASE)]],
    Field(max_length=MOST_PHRASES),
]


class Body(BaseModel):
    """A body without fields that this server would ignore."""

    model_config = ConfigDict(extra="forbid")


class Serving(Body):
    """How a request is served; none of it changes the result of a request that is finished."""

    model: str | None = Field(
        default=None, description="A model's name; by default the first that fits."
    )
    timeout: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which the request is given up.",
    )
    on_deadline: Literal["raise", "best"] | None = Field(
        default=None,
        description="At the deadline: answer 504, or with the best found so far; the server has a default.",
    )
    priority: int = Field(
        default=0, ge=-8, le=8, description="Higher goes first; the server says how high."
    )


class SourceLimit(Body):
    """`pybeam.limits.SourceLimit`: floor(ratio * source tokens + constant)."""

    ratio: float = Field(ge=0, allow_inf_nan=False)
    constant: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    def build(self) -> limits.SourceLimit:
        """Return the limit."""
        return limits.SourceLimit(self.ratio, self.constant)


Constraints = Sequence[processors.Processor]
Schema = Annotated[dict[str, Any], BeforeValidator(writable)]


class StructuredOutputs(Body):
    """The form of an output, as vLLM has it: exactly one of these."""

    json_schema: Schema | Text | None = Field(
        default=None, alias="json", description="JSON of this schema, which is an object or a text."
    )
    json_object: Literal[True] | None = Field(default=None, description="Any object of JSON.")
    regex: Text | None = Field(default=None, description="A text that this pattern matches whole.")
    choice: Annotated[Listed[Text], Field(min_length=1)] | None = Field(
        default=None, description="One of these texts."
    )
    grammar: Text | None = Field(
        default=None, description="A text of this grammar, in llguidance's dialect of Lark."
    )

    def asked(self, field: str) -> Asked:
        """Return the grammar. Raises APIError if there is none, or several, or no JSON schema."""
        given = {name: getattr(self, name) for name in StructuredOutputs.model_fields}
        kinds = [name for name, value in given.items() if value is not None]
        if len(kinds) != 1:
            raise APIError(400, f"`{field}` must have exactly one of its fields", field)
        return asked(field, kinds[0], given[kinds[0]])


class Scoring(Body):
    """`pybeam.Scoring`; `{"alpha": 1}` divides scores by the length."""

    alpha: FiniteFloat = 0.0
    offset: FiniteFloat = 0.0
    scale: FiniteFloat = 1.0
    reward: FiniteFloat = 0.0
    ratio: FiniteFloat | None = None
    coverage: FiniteFloat = 0.0


class Processor(BaseModel):
    """A function of `pybeam.processors` and its arguments; it replaces the server's of its kind."""

    model_config = ConfigDict(extra="allow")
    name: str

    def build(self) -> processors.Processor:
        """Return the processor. Raises APIError if there is none, or it refuses its arguments."""
        known: dict[str, Any] = {
            name: getattr(processors, name)
            for name in processors.__all__
            if name not in NOT_IN_JSON
        } | {"whisper_timestamps": whisper_timestamps}
        if self.name not in known:
            names = ", ".join(known)
            raise APIError(400, f"`processors` must have a `name` of {names}", "processors")
        try:
            made: processors.Processor = known[self.name](**(self.model_extra or {}))
            return made
        except (TypeError, ValueError, OverflowError) as error:
            raise APIError(422, f"`processors`, {self.name}: {error}", "processors") from error


class Sampling(Body):
    """How a server draws that is started with `--algorithm sample`; null: as the server does."""

    temperature: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="0: search instead."
    )
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int | None = Field(
        default=None, description="The same seed draws the same outputs; null: a new one."
    )

    def sampler(self, algorithm: Algorithm) -> Sample | None:
        """Return what draws for this request; None: the server searches.

        Raises:
            APIError: the server searches, and the request asks for samples.
        """
        given = {name: getattr(self, name) for name in Sampling.model_fields}
        own = next((one for one in algorithm.processors if isinstance(one, Sample)), None)
        if own is None:
            for name, values in NEUTRAL.items():
                if given[name] not in (None, *values):
                    raise APIError(
                        400,
                        f"`{name}` must be {values[0]}, because this server searches; `pybeam serve "
                        "--algorithm sample` starts one that samples",
                        name,
                    )
            return None
        seed = secrets.randbits(63) if self.seed is None else self.seed % (1 << 63)
        changes = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(own, **changes | {"seed": seed, "by_source": False})


class Penalised(Serving):
    """How hypotheses are ranked; null: as the server does."""

    length_penalty: FiniteFloat | None = Field(
        default=None, description="Divide scores by length ** this."
    )

    def ranking(self) -> rules.Scoring | None:
        """Return the scoring. Raises APIError if it is wrong."""
        try:
            return None if self.length_penalty is None else rules.power(self.length_penalty)
        except ValueError as error:
            raise refused(error) from error


class Ranked(Penalised):
    """The same, with all other rules."""

    scoring: Scoring | None = None

    def ranking(self) -> rules.Scoring | None:
        if self.scoring is None:
            return super().ranking()
        if self.length_penalty is not None:
            raise APIError(400, "give either `length_penalty` or `scoring`", "length_penalty")
        try:
            return rules.Scoring(**self.scoring.model_dump())
        except ValueError as error:
            raise refused(error) from error


class Search(Ranked, Sampling):
    """The options that a request changes about the server's search; null: nothing."""

    width: Count | None = Field(default=None, description="Beam width.")
    n_best: Count | None = Field(default=None, description="Outputs to return.")
    min_length: Annotated[int, Field(ge=0, lt=1 << 20)] | None = None
    max_length: Length | SourceLimit | None = None
    threshold: float | None = Field(default=None, description="Nats below the best.")
    max_candidates: float | None = None
    relative_threshold: float | None = None
    local_threshold: float | None = None
    keep_ties: bool | None = None
    ended_only: bool | None = None
    processors: Listed[Processor] | None = Field(default=None, max_length=16)
    structured_outputs: StructuredOutputs | None = Field(
        default=None, description="Nothing but outputs of this form."
    )
    must_contain: Phrases | None = Field(
        default=None, description="Phrases that every output contains, in any order."
    )

    @property
    def grammar(self) -> Asked | None:
        """The grammar that is asked for. Raises APIError if it cannot be read."""
        wish = self.structured_outputs
        return None if wish is None else wish.asked("structured_outputs")

    def overrides(self, algorithm: Algorithm, constraints: Constraints) -> dict[str, Any]:
        """Return the options of a `pybeam.Request` that are asked for. Raises APIError if one is wrong.

        `constraints` follow from `grammar` and `must_contain`.
        """
        found = {name: getattr(self, name) for name in OVERRIDES}
        if isinstance(self.max_length, SourceLimit):
            found["max_length"] = self.max_length.build()
        chain = [*constraints, *(one.build() for one in self.processors or ())]
        sampler = self.sampler(algorithm)
        # one that the body spells out replaces the whole of it
        if sampler is not None and not any(isinstance(one, Sample) for one in chain):
            chain.append(sampler)
        found["processors"] = chain or None
        return found | {"scoring": self.ranking()}


# the options of a request that a body has by the same name
OVERRIDES = Search.model_fields.keys() & {one.name for one in fields(Request)}


class Streamed(Search):
    """A search for a text, whose answer may come piece by piece."""

    source_lang: str | None = None
    target_lang: str | None = None
    stream: bool = Field(default=False, description="Send what is certain as server-sent events.")
    best_so_far: bool = Field(
        default=False, description="With `stream`: also the best hypothesis, which may change."
    )


class SentencesBody(Body):
    """A text to split into sentences."""

    text: Text
    model: str | None = Field(
        default=None, description="A model's name; by default the first that fits."
    )
    source_lang: str | None = None
    target_lang: str | None = None


class TranslationsBody(Streamed):
    """Texts to translate."""

    text: Text | Listed[Text]


class DecodeBody(Streamed):
    """Everything that a `pybeam.Request` has. A text, ids as they are, or features [E][F]."""

    source: Text | Ids | Listed[Listed[FiniteFloat]]
    prefix: Text | Ids | None = None
    target: Text | Ids | None = Field(
        default=None, description="An output to score instead of searching."
    )
    id: Annotated[Any, AfterValidator(writable)] = Field(
        default=None, description="It comes back in the answer."
    )


class ScoreBody(Ranked):
    """An output to score."""

    source: Text | Ids
    target: Text | Ids
    source_lang: str | None = None
    target_lang: str | None = None
