"""OpenAI's completions, for decoders and for models that read a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse, Response

from pybeam.server.calls import Calls, TheCalls
from pybeam.server.chunks import Chunks, frame_of
from pybeam.server.continuations import Choice, Continuations, Delta
from pybeam.server.log_probs import completion_log_probs
from pybeam.server.models import ServedModel
from pybeam.server.openai_bodies import CompletionsBody
from pybeam.server.routes import Route

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=Route)


@router.post("/completions")
async def completions(http: HTTPRequest, body: CompletionsBody, calls: TheCalls) -> Response:
    """Search for the `n` best outputs of each prompt, best first, or draw `n` outputs.

    A server that is started with `--algorithm sample` draws, unless `temperature` is 0. Others search, and
    fields for sampling must have their defaults. `best_of` and `beam_width` are the width of the beam; of
    samples, `best_of` are drawn, and the `n` whose tokens are most probable are the answer.
    """
    model = calls.pick(http, body.model, takes_sound=False)
    prompts = await _prompts(calls, model, body)
    constraints = await calls.constraints(http, model, body, body.grammar)
    outputs = Continuations(calls, http, model, body, prompts, constraints)
    frame = frame_of(model, "cmpl", "text_completion")
    write = _Writer(frame, outputs, model, body)
    if body.stream:
        return await calls.send(http, model, outputs.stream(), write)
    choices, usage = await outputs.choices()
    return JSONResponse(
        {**frame, "choices": [write.whole(one) for one in choices], "usage": usage.fields}
    )


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


class _Writer(Chunks):
    def __init__(
        self,
        frame: dict[str, Any],
        outputs: Continuations,
        model: ServedModel,
        body: CompletionsBody,
    ) -> None:
        super().__init__(frame, outputs.has_usage)
        self._prompts, self._model = outputs.prompts, model
        self._wants_log_probs = body.wants_log_probs

    def piece(self, part: Delta) -> Iterator[dict[str, Any]]:
        yield {"index": part.index, "text": part.text, "logprobs": None, "finish_reason": None}

    def end(self, part: Choice) -> Iterator[dict[str, Any]]:
        yield self.whole(part) | {"text": part.rest}

    def whole(self, one: Choice) -> dict[str, Any]:
        """Write a choice; an empty prompt's has no hypothesis."""
        choice: dict[str, Any] = {"index": one.index, "text": one.text, "logprobs": None}
        choice["finish_reason"] = one.finish_reason
        if one.hypothesis is not None:
            choice["score"] = one.hypothesis.score
            choice["final_score"] = one.hypothesis.final_score
            if self._wants_log_probs:
                prompt = self._prompts[one.prompt]
                choice["logprobs"] = completion_log_probs(self._model, one, prompt)
        return choice
