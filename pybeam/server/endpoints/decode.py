"""Decode and score: everything that a `pybeam.Request` has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from fastapi import APIRouter
from fastapi import Request as HTTPRequest
from fastapi.responses import Response

from pybeam.request import Request
from pybeam.server.answers import Decoded, decoded_of
from pybeam.server.auth import check_sound
from pybeam.server.calls import Calls, TheCalls
from pybeam.server.errors import APIError
from pybeam.server.models import ServedModel
from pybeam.server.routes import Route
from pybeam.server.schemas import DecodeBody, ScoreBody
from pybeam.server.sse import Event, event_of
from pybeam.serving import BestSoFar, Certain
from pybeam.text.deltas import TextDeltas
from pybeam.text.encoded import Encoded

router = APIRouter(prefix="/v1", tags=["decoding"], route_class=Route)


@router.post("/decode", response_model=Decoded)
async def decode(http: HTTPRequest, body: DecodeBody, calls: TheCalls) -> Decoded | Response:
    """Decode one source, or score a target.

    With `stream` the answer is server-sent events: `certain` (`tokens` so far, and the `delta` of the text),
    `best` (with `best_so_far`), `result`.
    """
    languages = (body.source_lang, body.target_lang)
    is_sound = (
        isinstance(body.source, list) and bool(body.source) and isinstance(body.source[0], list)
    )
    if is_sound:
        check_sound(http)
    model = calls.pick(http, body.model, *languages, takes_sound=is_sound)
    source = await _source(calls, model, body.source, languages)
    prefix = None
    if body.prefix is not None:
        # what the languages ask for stands before it
        own = source.prefix if isinstance(source, Encoded) else ()
        prefix = [*own, *_target_ids(calls, model, body.prefix, languages, "prefix")]
    target = body.target
    request = Request(
        source,
        prefix or None,
        body.id,
        target=None if target is None else _target_ids(calls, model, target, languages, "target"),
        **await calls.overrides(http, model, body),
    )
    if body.stream:
        write = _Writer(model)
        return await calls.stream(http, model, request, body, write, best_so_far=body.best_so_far)
    [served] = await calls.decode(http, model, [request], body)
    return decoded_of(model, served)


@router.post("/score")
async def score(http: HTTPRequest, body: ScoreBody, calls: TheCalls) -> Decoded:
    """Score an output: the log-probability of each of its tokens and of its end."""
    languages = (body.source_lang, body.target_lang)
    model = calls.pick(http, body.model, *languages, takes_sound=False)
    source = await _source(calls, model, body.source, languages)
    request = Request(
        source,
        target=_target_ids(calls, model, body.target, languages, "target"),
        scoring=body.ranking(),
    )
    [served] = await calls.decode(http, model, [request], body)
    return decoded_of(model, served)


async def _source(
    calls: Calls,
    model: ServedModel,
    source: str | list[int] | list[list[float]],
    languages: tuple[str | None, str | None],
) -> Any:
    """Return the source, with the prefix that the languages ask for; ids are used exactly as given."""
    if isinstance(source, str):
        return await calls.encode(model, source, languages, "source")
    calls.check_tokens(source, "source")
    if source and isinstance(source[0], list):
        return _features(source)
    return source


def _features(source: Any) -> torch.Tensor:
    """Return features [E, F] float32. Raises APIError if lines differ in length."""
    try:
        return torch.tensor(source, dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise APIError(
            422, f"`source` must be ids, a text, or features [E][F]: {error}", "source"
        ) from error


def _target_ids(
    calls: Calls,
    model: ServedModel,
    given: str | list[int],
    languages: tuple[str | None, str | None],
    field: str,
) -> list[int]:
    calls.check_tokens(given, field)
    if not isinstance(given, str):
        return given
    return model.tokenizer(*languages).encode_target(given)


class _Writer:
    def __init__(self, model: ServedModel) -> None:
        self._model, self._deltas = model, TextDeltas(model.text)

    def __call__(self, event: Event) -> Iterator[str]:
        if isinstance(event, Certain):
            data = {"tokens": event.tokens, "delta": self._deltas.more(event.tokens)}
            yield event_of(data, "certain")
        elif isinstance(event, BestSoFar):
            data = {"tokens": event.tokens, "text": self._model.text(event.tokens)}
            yield event_of(data, "best")
        else:
            if delta := self._deltas.rest(self._model.best_text(event)):
                tokens = event.result.hypotheses[0].tokens
                yield event_of({"tokens": tokens, "delta": delta}, "certain")
            yield event_of(decoded_of(self._model, event).model_dump_json(), "result")
