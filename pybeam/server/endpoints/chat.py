"""OpenAI's chat completions, for language models whose folder has a chat template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from fastapi.responses import JSONResponse, Response

from pybeam.server.calls import MAX_INLINE, Calls, TheCalls
from pybeam.server.chunks import Chunks, frame_of
from pybeam.server.continuations import Choice, Continuations, Delta, Part
from pybeam.server.errors import APIError
from pybeam.server.log_probs import chat_log_probs, most_probable, scored
from pybeam.server.messages import encoded
from pybeam.server.models import ServedModel
from pybeam.server.openai_bodies import ChatBody
from pybeam.server.routes import Route
from pybeam.server.tool_calls import BEGIN, split_calls
from pybeam.text.stops import Stops

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=Route)


@router.post("/chat/completions")
async def chat_completions(http: HTTPRequest, body: ChatBody, calls: TheCalls) -> Response:
    """Answer the messages of a chat, which the chat template of the model's folder turns into a prompt.

    A server that is started with `--algorithm sample` draws answers, unless `temperature` is 0. Others search
    for the `n` best ones, with the fields for beams that `/v1/completions` has.
    """
    model = calls.pick(http, body.model, takes_sound=False)
    prompt = await _prompt(calls, http, model, body)
    constraints = await calls.constraints(http, model, body, body.grammar)
    outputs = Continuations(calls, http, model, body, [prompt], constraints)
    chat = _Chat(calls, http, model, body, prompt)
    if body.stream:
        frame = frame_of(model, "chatcmpl", "chat.completion.chunk")
        parts = chat.with_log_probs(outputs.stream())
        return await calls.send(http, model, parts, _Writer(frame, outputs.has_usage, chat))
    choices, usage = await outputs.choices()
    written = await calls.all_of(http, [chat.whole(one) for one in choices])
    frame = frame_of(model, "chatcmpl", "chat.completion")
    return JSONResponse({**frame, "choices": written, "usage": usage.fields})


async def _prompt(calls: Calls, http: HTTPRequest, model: ServedModel, body: ChatBody) -> list[int]:
    """Return the ids of the prompt that asks for the next message.

    Raises:
        APIError: the model has no chat template, or it refuses the messages, or they are too long.
    """
    # the template is read once, and tools are long
    is_short = "chat_template" in vars(model) and not body.tools
    is_short &= len(await http.body()) <= MAX_INLINE
    try:
        if is_short:
            tokens = encoded(model, body)
        else:
            tokens = await asyncio.to_thread(encoded, model, body)
    except (ImportError, ValueError) as error:
        raise APIError(400, str(error), "messages") from error
    calls.check_tokens(tokens, "messages")
    return tokens


class _Chat:
    """How the choices of a chat are written."""

    def __init__(
        self,
        calls: Calls,
        http: HTTPRequest,
        model: ServedModel,
        body: ChatBody,
        prompt: list[int],
    ) -> None:
        self._calls, self._http, self._model, self._body = calls, http, model, body
        self._prompt, self._wants_log_probs = prompt, body.wants_log_probs
        self.has_tools = bool(body.tools) and body.tool_choice != "none"
        # by the index of a choice
        self.log_probs: dict[int, dict[str, Any] | None] = {}

    async def whole(self, one: Choice) -> dict[str, Any]:
        """Write a choice."""
        text, calls = split_calls(one.text) if self.has_tools else (one.text, [])
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text if text.strip() else None, "tool_calls": calls}
        await self._look(one)
        found = {
            "index": one.index,
            "message": message,
            "logprobs": self.log_probs[one.index],
            "finish_reason": "tool_calls" if calls else one.finish_reason,
        }
        return found | scores_of(one)

    async def with_log_probs(self, parts: AsyncGenerator[Part, None]) -> AsyncGenerator[Part, None]:
        """Yield parts, each choice when its log-probabilities are known."""
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Choice):
                    await self._look(part)
                yield part

    async def _look(self, one: Choice) -> None:
        self.log_probs[one.index] = None
        if not self._wants_log_probs:
            return
        given, top, tops = scored(self._model, one, self._prompt), self._body.top_logprobs, None
        if top:
            self._calls.check_width(top_logprobs=top)
            call = self._calls, self._http, self._model, self._body
            biases = self._body.biases(self._model.decoder.algorithm)
            before = [*self._prompt, *given.before]
            tops = await most_probable(*call, before, given.tokens, top, biases)
        found = chat_log_probs(self._model, self._prompt, given, tops)
        self.log_probs[one.index] = found


def scores_of(one: Choice) -> dict[str, float]:
    """Return the scores by which outputs are ranked, which OpenAI's answers lack."""
    if one.hypothesis is None:
        return {}
    return {"score": one.hypothesis.score, "final_score": one.hypothesis.final_score}


class _Writer(Chunks):
    def __init__(self, frame: dict[str, Any], has_usage: bool, chat: _Chat) -> None:
        super().__init__(frame, has_usage)
        self._chat = chat
        # a call is sent whole, at the end
        self._begins = Stops([BEGIN] if chat.has_tools else [])
        self._held: dict[int, str] = {}

    def piece(self, part: Delta) -> Iterator[dict[str, Any]]:
        index, is_first = part.index, part.index not in self._held
        held = self._held.get(index, "") + part.text
        shown = self._begins.shown(held)
        # what begins a call stays until the end
        self._held[index] = held[len(shown) :]
        if is_first:
            yield _chunk(index, {"role": "assistant", "content": shown})
        elif shown:
            yield _chunk(index, {"content": shown})

    def end(self, part: Choice) -> Iterator[dict[str, Any]]:
        index = part.index
        yield from self.piece(Delta(index, ""))
        rest = self._held[index] + part.rest
        rest, calls = split_calls(rest) if self._chat.has_tools else (rest, [])
        log_probs = self._chat.log_probs[index]
        if rest or log_probs:
            yield _chunk(index, {"content": rest}) | {"logprobs": log_probs}
        if calls:
            yield _chunk(
                index, {"tool_calls": [{"index": i, **one} for i, one in enumerate(calls)]}
            )
        reason = "tool_calls" if calls else part.finish_reason
        yield _chunk(index, {}) | {"finish_reason": reason} | scores_of(part)


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
