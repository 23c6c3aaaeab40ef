"""The bodies of OpenAI's completions and chat completions.

A field that this server cannot honour is known all the same if a client may send its default.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from pybeam.processors.base import Processor
from pybeam.search.algorithms import Algorithm
from pybeam.server.biases import MOST_BIAS, biases_of
from pybeam.server.errors import APIError
from pybeam.server.grammars import Asked, asked
from pybeam.server.schemas import (
    Body,
    Count,
    Ids,
    Length,
    Listed,
    Penalised,
    Sampling,
    Schema,
    StructuredOutputs,
    Text,
    writable,
)

MAX_STOPS = 16
MAX_BIASES = 1024
# of a token id
MAX_DIGITS = 10
# what a chat's answer may list beside each token
MAX_TOP = 20


def _only(*values: Any, reason: str) -> AfterValidator:
    """Refuse all values of a field but these, the first of which clients leave out or send."""

    def check(given: Any) -> Any:
        if given not in values:
            raise ValueError(f"must be {json.dumps(values[0])} or left out, because {reason}")
        return given

    return AfterValidator(check)


def _not_empty(given: str) -> str:
    if not given:
        raise ValueError("must not be empty, which would end every text where it begins")
    return given


def _biases(given: Any) -> Any:
    """Say which entry of `logit_bias` is wrong; that a field of it is says less."""
    for name, value in given.items() if isinstance(given, dict) else ():
        shown = json.dumps(name[:MAX_DIGITS])
        if not (name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS):
            raise ValueError(f"must have token ids for names, but has {shown}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and -MOST_BIAS <= value <= MOST_BIAS):
            raise ValueError(f"must be from {-MOST_BIAS:g} to {MOST_BIAS:g} for {shown}")
    return given


Stop = Annotated[Text, AfterValidator(_not_empty)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Biases = Annotated[
    dict[str, Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]],
    Field(max_length=MAX_BIASES),
    BeforeValidator(_biases),
]


class StreamOptions(Body):
    """The parts of a stream beside its text."""

    include_usage: bool = Field(default=False, description="Send the usage before `[DONE]`.")
    include_obfuscation: bool | None = None


class NamedSchema(BaseModel):
    """A JSON schema of OpenAI. Outputs keep to it, whether `strict` is said or not."""

    name: Text
    description: Text | None = None
    json_schema: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an output."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class Structured(Body):
    """The form of an output. `response_format` is OpenAI's, the others are vLLM's, older and newer."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | Text | None = None
    guided_regex: Text | None = None
    guided_choice: Annotated[Listed[Text], Field(min_length=1)] | None = None
    guided_grammar: Text | None = None

    @property
    def grammar(self) -> Asked | None:
        """The grammar that is asked for. Raises APIError if it cannot be read, or if there are several."""
        guided: dict[str, Any] = {"json_schema": self.guided_json, "regex": self.guided_regex}
        guided |= {"choice": self.guided_choice, "grammar": self.guided_grammar}
        wishes = [
            asked(f"guided_{kind.removesuffix('_schema')}", kind, value)
            for kind, value in guided.items()
            if value is not None
        ]
        if self.structured_outputs is not None:
            wishes.append(self.structured_outputs.asked("structured_outputs"))
        form = self.response_format
        if form is not None and form.type != "text":
            named = form.json_schema
            schema = None if named is None else named.json_schema
            if form.type == "json_schema" and schema is None:
                problem = "`response_format` must have a `schema` in its `json_schema`"
                raise APIError(400, problem, "response_format")
            wishes.append(asked("response_format", form.type, schema))
        if len(wishes) > 1:
            problem = f"give either `{wishes[0].field}` or `{wishes[1].field}`"
            raise APIError(400, problem, wishes[1].field)
        return wishes[0] if wishes else None


class Generation(Penalised, Sampling, Structured):
    """The fields that completions and chats share. `beam_width` and its neighbours are vLLM's."""

    max_tokens: Length | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 20)] | None = None
    n: Count | None = None
    use_beam_search: bool | None = Field(default=None, description="false: the greedy output.")
    beam_width: Count | None = None
    stop: Stop | Annotated[Listed[Stop], Field(max_length=MAX_STOPS)] | None = Field(
        default=None, description="A text ends before the first of these."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    # they change no answer
    user: Text | None = None
    metadata: dict[str, Any] | None = None
    store: Annotated[bool, _only(False, reason="nothing is stored here")] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @property
    def num(self) -> int:
        """How many outputs are asked for."""
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def biases(self, algorithm: Algorithm) -> list[Processor]:
        """Return what the body changes about the server's processors. Raises APIError if it may not."""
        penalties = self.frequency_penalty or 0.0, self.presence_penalty or 0.0
        return biases_of(algorithm, self.logit_bias or {}, *penalties)

    @property
    def most(self) -> int | None:
        """Tokens of an output; None: the server's limit."""
        return self.max_tokens

    @property
    def candidates(self) -> int:
        """How many outputs are drawn, of which the best `num` are the answer."""
        return self.num

    @property
    def wants_log_probs(self) -> bool:
        """Whether the answer has log-probabilities."""
        raise NotImplementedError

    @property
    def has_usage(self) -> bool:
        """Whether a stream ends with the usage. Raises APIError for options of what is no stream."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise APIError(400, "`stream_options` needs `stream`", "stream_options")
        return self.stream_options.include_usage


class CompletionsBody(Generation):
    """OpenAI's completions. The prompt is the source; what this server cannot do must keep its default."""

    prompt: Text | Ids | Listed[Text] | Listed[Ids]
    best_of: Count | None = Field(
        default=None, description="Beam width; of samples, how many are drawn."
    )
    logprobs: int | None = Field(
        default=None, ge=0, le=1, description="Log-probability of each token."
    )
    echo: Annotated[bool, _only(False, reason="only what follows a prompt is sent")] | None = None
    suffix: Annotated[str, _only("", reason="models here go on from a prompt alone")] | None = None

    @property
    def candidates(self) -> int:
        return self.num if self.best_of is None else self.best_of

    @property
    def wants_log_probs(self) -> bool:
        return self.logprobs is not None


class Part(BaseModel):
    """A part of a message."""

    type: str
    text: Text | None = None


class CalledFunction(BaseModel):
    name: Text
    arguments: Text = Field(description="JSON.")


class ToolCall(BaseModel):
    id: Text | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    """A message of a chat. Fields that answers have and templates do not know are left out."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Listed[Part] | None = None
    name: Text | None = None
    tool_calls: Listed[ToolCall] | None = None
    tool_call_id: Text | None = None


class Function(BaseModel):
    """A function that the model may call; `parameters` are a JSON schema."""

    model_config = ConfigDict(extra="allow")
    name: Text


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


ToolChoice = Annotated[
    str | dict[str, Any],
    _only("auto", "none", reason='nothing holds outputs to a call; "none" leaves the tools out'),
]


class ChatBody(Generation):
    """OpenAI's chat completions, for language models whose folder has a chat template."""

    messages: Annotated[Listed[Message], Field(min_length=1)]
    max_completion_tokens: Length | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP)
    tools: Annotated[Listed[Tool] | None, BeforeValidator(writable)] = Field(
        default=None, description="For templates that know them, and write calls as `<tool_call>`."
    )
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[Listed[str], _only(["text"], reason="answers are text")] | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, BeforeValidator(writable)] = Field(
        default=None, description='Variables of the template: `{"enable_thinking": false}`.'
    )

    @property
    def most(self) -> int | None:
        if self.max_completion_tokens is None:
            return self.max_tokens
        if self.max_tokens is not None:
            raise APIError(400, "give either `max_completion_tokens` or `max_tokens`", "max_tokens")
        return self.max_completion_tokens

    @property
    def wants_log_probs(self) -> bool:
        if self.top_logprobs and not self.logprobs:
            raise APIError(400, "`top_logprobs` needs `logprobs`", "top_logprobs")
        if self.top_logprobs and (self.frequency_penalty or self.presence_penalty):
            problem = (
                "`top_logprobs` must be left out beside penalties, which follow the whole output"
            )
            raise APIError(400, problem, "top_logprobs")
        if self.top_logprobs and self.grammar is not None:
            problem = (
                "`top_logprobs` must be left out beside a grammar, which follows the whole output"
            )
            raise APIError(400, problem, "top_logprobs")
        return bool(self.logprobs)
