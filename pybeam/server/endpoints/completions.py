"""OpenAI's completions, for decoders and for models that read a source."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse, Response

from pybeam.processors.sampling import Sample
from pybeam.request import Hypothesis, Request
from pybeam.server.answers import finite
from pybeam.server.calls import Calls, TheCalls
from pybeam.server.errors import APIError
from pybeam.server.models import ServedModel
from pybeam.server.routes import Route
from pybeam.server.schemas import CompletionsBody
from pybeam.server.sse import Event, event_of
from pybeam.serving import Certain, ServedResult
from pybeam.text.deltas import TextDeltas

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=Route)


@router.post("/completions")
async def completions(http: HTTPRequest, body: CompletionsBody, calls: TheCalls) -> Response:
    """Search for the `n` best outputs of each prompt, best first, or draw `n` outputs.

    A server that is started with `--algorithm sample` draws, unless `temperature` is 0. Others search, and
    fields for sampling must have their defaults. `best_of` and `beam_width` are the width of the beam.
    """
    model = calls.models.pick(body.model, takes_sound=False)
    sampler = body.sampler(model.decoder.algorithm)
    num = model.decoder.algorithm.num_groups
    if sampler is not None and num > 1:
        problem = f"`n` says how many outputs are drawn, but this server draws {num}, by --samples"
        raise APIError(400, f"{problem}; ask /v1/decode, or start the server without it", "n")
    prompts = await _prompts(calls, model, body)
    if sampler is not None and sampler.temperature > 0:
        requests = _drawn(calls, prompts, body, sampler)
    else:
        requests = _searched(calls, model, prompts, body, sampler)
    if body.stream:
        if len(requests) > 1 or body.n > 1:
            raise APIError(400, "`stream` takes one prompt and `n` = 1", "stream")
        has_usage = bool((body.stream_options or {}).get("include_usage"))
        writer = _Writer(model, body, len(requests[0].source), has_usage)
        return await calls.stream(http, model, requests[0], body, writer)
    served = await calls.decode(http, model, requests, body)
    each = len(requests) // len(prompts)
    choices = [
        _choice(model, body, hypothesis, body.n // each * i + rank)
        for i, one in enumerate(served)
        for rank, hypothesis in enumerate(_hypotheses(one)[: body.n // each])
    ]
    return JSONResponse(_completion(model, choices) | {"usage": _usage(requests[::each], served)})


async def _prompts(calls: Calls, model: ServedModel, body: CompletionsBody) -> list[Any]:
    """Return the ids of all prompts."""
    prompts: list[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    if prompts and isinstance(prompts[0], int):
        prompts = [prompts]
    calls.check_number(prompts, "prompt")
    found = []
    for prompt in prompts:
        if isinstance(prompt, str):
            prompt = await calls.encode(model, prompt, (None, None), "prompt")
        else:
            calls.check_tokens(prompt, "prompt")
        found.append(prompt)
    return found


def _searched(
    calls: Calls,
    model: ServedModel,
    prompts: list[Any],
    body: CompletionsBody,
    sampler: Sample | None,
) -> list[Request]:
    """Return a request for each prompt. `sampler` draws nothing, if the server has one."""
    overrides: dict[str, Any] = {
        "width": _width(calls, model, body),
        "n_best": body.n,
        "min_length": body.min_tokens,
        "max_length": body.max_tokens,
        "scoring": body.ranking(),
        "processors": None if sampler is None else [sampler],
    }
    return [Request(prompt, **overrides) for prompt in prompts]


def _drawn(
    calls: Calls, prompts: list[Any], body: CompletionsBody, sampler: Sample
) -> list[Request]:
    """Return `n` requests for each prompt, whose outputs are independent."""
    calls.check_width(n=body.n)
    for field in ("use_beam_search", "beam_width", "best_of", "length_penalty"):
        if getattr(body, field):
            raise APIError(400, f"`{field}` needs `temperature` = 0, which searches", field)
    return [
        Request(
            prompt,
            min_length=body.min_tokens,
            max_length=body.max_tokens,
            processors=[dataclasses.replace(sampler, draw=draw)],
        )
        for prompt in prompts
        for draw in range(body.n)
    ]


def _width(calls: Calls, model: ServedModel, body: CompletionsBody) -> int | None:
    """Return the width of the beam; None: the server's own."""
    if body.use_beam_search is False:
        for field in ("beam_width", "best_of", "n"):
            if (getattr(body, field) or 1) > 1:
                raise APIError(400, f"`{field}` needs `use_beam_search`", field)
        return 1
    calls.check_width(n=body.n, best_of=body.best_of, beam_width=body.beam_width)
    width = body.beam_width or body.best_of
    if width is not None and width < body.n:
        field = "beam_width" if body.beam_width else "best_of"
        raise APIError(400, f"`{field}` must be at least `n`, {body.n}, but is {width}", field)
    if width is None and body.n > model.decoder.algorithm.last_width:
        return body.n
    return width


def _hypotheses(served: ServedResult) -> list[Hypothesis | None]:
    return [*served.result.hypotheses] or [None]


def _completion(model: ServedModel, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
        "choices": choices,
    }


def _choice(
    model: ServedModel, body: CompletionsBody, found: Hypothesis | None, index: int
) -> dict[str, Any]:
    """Write a hypothesis; None: the search found none, as for an empty prompt."""
    choice: dict[str, Any] = {"index": index, "text": "", "logprobs": None, "finish_reason": "stop"}
    if found is None:
        return choice
    choice["text"] = model.text(found.tokens)
    choice["finish_reason"] = "stop" if found.ended else "length"
    choice["score"], choice["final_score"] = found.score, found.final_score
    if body.logprobs is not None and found.log_probs is not None:
        # of the end token, which has no text, and the prefix, which is not generated, there is none
        tokens = found.tokens[max(0, len(found.tokens) + found.ended - len(found.log_probs)) :]
        start = len(found.tokens) - len(tokens)
        lengths = [len(model.text(found.tokens[: start + i])) for i in range(len(tokens))]
        choice["logprobs"] = {
            "tokens": model.pieces(tokens),
            "token_logprobs": (finite(found.log_probs) or [])[: len(tokens)],
            "top_logprobs": None,
            "text_offset": lengths,
        }
    return choice


def _usage(requests: list[Request], served: list[ServedResult]) -> dict[str, int]:
    prompt = sum(len(request.source) for request in requests)
    generated = sum(len(one.tokens) + one.ended for all in served for one in all.result.hypotheses)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }


class _Writer:
    """Chunks of a completion, all of one id."""

    def __init__(
        self, model: ServedModel, body: CompletionsBody, num_tokens: int, has_usage: bool
    ) -> None:
        self._model, self._body, self._num_tokens = model, body, num_tokens
        self._deltas, self._has_usage = TextDeltas(model.text), has_usage
        self._frame = _completion(model, [])

    def __call__(self, event: Event) -> Iterator[str]:
        if isinstance(event, Certain):
            if delta := self._deltas.more(event.tokens):
                yield self._chunk(
                    {"index": 0, "text": delta, "logprobs": None, "finish_reason": None}
                )
        elif isinstance(event, ServedResult):
            [found] = _hypotheses(event)[:1]
            last = _choice(self._model, self._body, found, 0)
            last["text"] = self._deltas.rest(self._model.best_text(event))
            yield self._chunk(last)
            if self._has_usage:
                request = Request([0] * self._num_tokens)
                yield event_of(self._frame | {"usage": _usage([request], [event])})
            yield event_of("[DONE]")

    def _chunk(self, choice: dict[str, Any]) -> str:
        return event_of(self._frame | {"choices": [choice]})
