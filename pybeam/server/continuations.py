"""The way from prompts to the choices of OpenAI's completions and chats, at once or piece by piece."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request as HTTPRequest

from pybeam.limits import SourceLimit
from pybeam.processors.base import Processor
from pybeam.processors.sampling import Sample
from pybeam.request import Hypothesis, Request
from pybeam.server.calls import Calls
from pybeam.server.errors import APIError
from pybeam.server.models import ServedModel
from pybeam.server.openai_bodies import Generation
from pybeam.server.sse import Event
from pybeam.serving import Certain, ServedResult
from pybeam.serving.together import merged
from pybeam.text.deltas import INCOMPLETE, TextDeltas
from pybeam.text.stops import Stops


@dataclass(frozen=True)
class Delta:
    """A piece of text that is certain, of the choice of this number."""

    index: int
    text: str


@dataclass(frozen=True)
class Choice:
    """An output.

    Attributes:
        index: its number.
        text: without stop strings.
        rest: the end of the text that no `Delta` had.
        finish_reason: "stop", or "length" of one that was cut.
        num_tokens: that were generated, EOS included; if it was given up at a stop string, up to there.
        prompt: the number of its prompt.
        hypothesis: None: it was given up at a stop string, or the search found none.
    """

    index: int
    text: str
    rest: str
    finish_reason: str
    num_tokens: int
    prompt: int
    hypothesis: Hypothesis | None

    @property
    def mean_log_prob(self) -> float:
        """The log-probability of a token, by which samples are ranked."""
        score = 0.0 if self.hypothesis is None else self.hypothesis.score
        return score / max(1, self.num_tokens)


@dataclass(frozen=True)
class Usage:
    """The tokens of a call."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def fields(self) -> dict[str, int]:
        """The usage as answers have it."""
        return {**vars(self), "total_tokens": self.prompt_tokens + self.completion_tokens}


Part = Delta | Choice | Usage


class Continuations:
    """The outputs that a body asks of a model, for each of its prompts.

    Args:
        calls, http, model, body: the call.
        prompts: ids.
        constraints: of the body's grammar, see `Grammars`.

    Attributes:
        prompts: see above.
        has_usage: whether a stream ends with the usage.

    Raises:
        APIError: the body asks for what this server does not do.
    """

    def __init__(
        self,
        calls: Calls,
        http: HTTPRequest,
        model: ServedModel,
        body: Generation,
        prompts: Sequence[Sequence[int]],
        constraints: Sequence[Processor],
    ) -> None:
        self._calls, self._http, self._model, self._body = calls, http, model, body
        self.prompts, self._stops = prompts, Stops(body.stops)
        self.has_usage = body.has_usage
        algorithm = model.decoder.algorithm
        sampler = body.sampler(algorithm)
        if sampler is not None and algorithm.num_groups > 1:
            raise APIError(
                400,
                f"`n` says how many outputs are drawn, but this server draws {algorithm.num_groups}, by "
                "--samples; ask /v1/decode, or start the server without it",
                "n",
            )
        is_drawn = sampler is not None and sampler.temperature > 0
        self._biases = [*constraints, *body.biases(algorithm)]
        self._each = 1 if is_drawn else body.num  # choices of one request
        self._requests = self._drawn(sampler) if is_drawn else self._searched(sampler)
        # a request that is given up has no log-probabilities
        ranks = is_drawn and body.candidates > body.num
        self._may_leave = self._each == 1 and not (body.wants_log_probs or ranks)

    async def choices(self) -> tuple[list[Choice], Usage]:
        """Return the best `n` choices of each prompt, and the tokens of all that were made.

        Raises:
            APIError: a request failed.
        """
        if self._stops and self._may_leave:
            found = await self._calls.all_of(
                self._http, [self._last(i, events) for i, events in enumerate(await self._begin())]
            )
        else:
            served = await self._calls.decode(self._http, self._model, self._requests, self._body)
            found = [self._of(i, one) for i, one in enumerate(served)]
        made = [choice for one in found for choice in one]
        return self._best(made), self._usage(made)

    async def stream(self) -> AsyncGenerator[Part, None]:
        """Yield pieces of choices as they are certain, each choice when it is done, and the usage."""
        if self._each == 1 and len(self._requests) > self._body.num * len(self.prompts):
            raise APIError(400, "`best_of` is ranked at the end; leave `stream` out", "best_of")
        parts = [self._parts(i, events) for i, events in enumerate(await self._begin())]
        made = []
        async with aclosing(parts[0] if len(parts) == 1 else merged(parts)) as coming:
            async for part in coming:
                if isinstance(part, Choice):
                    made.append(part)
                yield part
        yield self._usage(made)

    def _usage(self, made: Sequence[Choice]) -> Usage:
        return Usage(sum(map(len, self.prompts)), sum(one.num_tokens for one in made))

    async def _begin(self) -> list[AsyncGenerator[Event, None]]:
        """Let the service take all requests. Returns the events of each."""
        fields = {"model": self._model.name, "sources": len(self._requests)}
        self._http.state.log_fields = fields
        return await self._calls.begin(self._http, self._model, self._requests, self._body)

    def _prompt_of(self, number: int) -> int:
        """The prompt of a request."""
        return number * len(self.prompts) // len(self._requests)

    async def _last(self, number: int, events: AsyncGenerator[Event, None]) -> list[Choice]:
        return [part async for part in self._parts(number, events) if isinstance(part, Choice)]

    async def _parts(
        self, number: int, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[Delta | Choice, None]:
        """Yield what is certain of a request, and its choices. It is over at a stop string."""
        text = self._model.continuation(self.prompts[self._prompt_of(number)])
        deltas, first = TextDeltas(text), number * self._each
        async with aclosing(events):
            async for event in events:
                if isinstance(event, ServedResult):
                    for choice in self._of(number, event, deltas):
                        yield choice
                elif isinstance(event, Certain):
                    whole = text(event.tokens).rstrip(INCOMPLETE)
                    cut, has_stop = self._stops.cut(whole)
                    if has_stop and self._may_leave:
                        rest, num = deltas.rest(cut), self._num_read(text, event.tokens)
                        prompt = self._prompt_of(number)
                        yield Choice(first, cut, rest, "stop", num, prompt, None)
                        return
                    if delta := deltas.rest(self._stops.shown(whole)):
                        yield Delta(first, delta)

    def _of(
        self, number: int, served: ServedResult, deltas: TextDeltas | None = None
    ) -> list[Choice]:
        """Return the choices of a result; `deltas` have told of the first one."""
        prompt = self._prompt_of(number)
        text = self._model.continuation(self.prompts[prompt])
        found: list[Hypothesis | None] = [*served.result.hypotheses[: self._each]] or [None]
        choices = []
        for rank, one in enumerate(found):
            whole, has_stop = self._stops.cut("" if one is None else text(one.tokens))
            # nothing that the body asks for may have fitted
            is_empty = one is None and served.result.stop_reason != "empty_beam"
            is_over = is_empty or (one is not None and one.ended) or has_stop
            num = 0 if one is None else len(one.tokens) + one.ended
            if one is not None and has_stop and self._may_leave:
                num = self._num_read(text, one.tokens)
            choices.append(
                Choice(
                    number * self._each + rank,
                    whole,
                    whole if rank or deltas is None else deltas.rest(whole),
                    "stop" if is_over else "length",
                    num,
                    prompt,
                    one,
                )
            )
        return choices

    def _num_read(self, text: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> int:
        """Return how many of the tokens it takes until their text has a stop string."""

        def has_stop(num: int) -> bool:
            return self._stops.cut(text(tokens[:num]).rstrip(INCOMPLETE))[1]

        return bisect_left(range(len(tokens)), True, key=has_stop)

    def _best(self, made: list[Choice]) -> list[Choice]:
        """Return the choices that are asked for, numbered anew if more were drawn."""
        num = self._body.num
        if self._each > 1 or len(made) == num * len(self.prompts):
            return made
        kept = []
        for prompt in range(len(self.prompts)):
            own = [one for one in made if one.prompt == prompt]
            kept += sorted(own, key=lambda one: -one.mean_log_prob)[:num]
        return [dataclasses.replace(one, index=i) for i, one in enumerate(kept)]

    def _limit(self, prompt: Sequence[int]) -> int | SourceLimit | None:
        """Return the tokens of an output, of which a client may ask for more than there is room for."""
        most, positions = self._body.most, self._model.decoder.model.max_positions
        if most is None or positions is None or len(prompt) + most <= positions:
            return most
        return SourceLimit(0.0, most)

    def _drawn(self, sampler: Sample | None) -> list[Request]:
        """Return a request for each draw of each prompt, whose outputs are independent."""
        body, num = self._body, self._body.candidates
        assert sampler is not None, "it draws"
        self._calls.check_width(n=body.num, best_of=num)
        for field in ("use_beam_search", "beam_width", "length_penalty"):
            if getattr(body, field):
                raise APIError(400, f"`{field}` needs `temperature` = 0, which searches", field)
        self._check_best_of()
        return [
            Request(
                prompt,
                min_length=body.min_tokens,
                max_length=self._limit(prompt),
                processors=[*self._biases, dataclasses.replace(sampler, draw=draw)],
            )
            for prompt in self.prompts
            for draw in range(num)
        ]

    def _searched(self, sampler: Sample | None) -> list[Request]:
        """Return a request for each prompt. `sampler` draws nothing, if the server has one."""
        changes = [*self._biases, *([] if sampler is None else [sampler])]
        overrides: dict[str, Any] = {
            "width": self._width(),
            "n_best": self._body.num,
            "min_length": self._body.min_tokens,
            "scoring": self._body.ranking(),
            "processors": changes or None,
        }
        return [
            Request(prompt, max_length=self._limit(prompt), **overrides) for prompt in self.prompts
        ]

    def _check_best_of(self) -> None:
        if self._body.candidates < self._body.num:
            problem = f"must be at least `n`, {self._body.num}, but is {self._body.candidates}"
            raise APIError(400, f"`best_of` {problem}", "best_of")

    def _width(self) -> int | None:
        """Return the width of the beam; None: the server's own."""
        body = self._body
        given: dict[str, int | None] = {"beam_width": body.beam_width, "n": body.n}
        if body.candidates != body.num:
            given["best_of"] = body.candidates
        if body.use_beam_search is False:
            for field, value in given.items():
                if (value or 1) > 1:
                    raise APIError(400, f"`{field}` needs `use_beam_search`", field)
            return 1
        self._calls.check_width(**given)
        self._check_best_of()
        width = body.beam_width or given.get("best_of")
        if width is not None and width < body.num:
            problem = f"must be at least `n`, {body.num}, but is {width}"
            raise APIError(400, f"`beam_width` {problem}", "beam_width")
        if width is None and body.num > self._model.decoder.algorithm.last_width:
            return body.num
        return width
