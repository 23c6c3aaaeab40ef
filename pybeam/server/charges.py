"""The costs of requests, which their keys pay, and the words of the log about them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import Request as HTTPRequest
from starlette.requests import HTTPConnection
from torch import Tensor

from pybeam.models.transformer.sources import SharedFeatures
from pybeam.request import Request
from pybeam.server.auth import charge, charge_given
from pybeam.server.models import ServedModel
from pybeam.server.sse import Event
from pybeam.serving import Certain, ServedResult, ServedStream


def charge_requests(http: HTTPConnection, model: ServedModel, requests: Sequence[Request]) -> None:
    sources = [one.source for one in requests if isinstance(one.source, Tensor)]
    seconds = sum(map(len, sources)) * model.frame_seconds if model.takes_sound else 0.0
    charge_given(http, sum(map(_num_given, requests)), seconds)


async def charged(
    http: HTTPRequest, model: ServedModel, coming: ServedStream
) -> AsyncGenerator[Event, None]:
    """Yield the events of a request; a client that goes before the end has had what was certain."""
    num_charged = 0
    async with coming:
        async for event in coming:
            num = num_charged
            if isinstance(event, ServedResult):
                http.state.log_fields = log_fields(model, [event])
                num = num_generated(event)
            elif isinstance(event, Certain):
                num = len(event.tokens)
            charge(http, "tokens", num - num_charged)
            num_charged = num
            yield event


def log_fields(model: ServedModel, served: Sequence[ServedResult]) -> dict[str, Any]:
    """Return what the log says of results, side by side: of times and steps the most; no text."""
    times = [one.times for one in served]
    steps = sum(one.steps for one in times)
    expansions = sum(one.expansions for one in times)
    has_late = any(one.reason == "deadline" for one in served)
    return {
        "model": model.name,
        "sources": len(served),
        "queued": round(max(one.queued for one in times), 6),
        "encoding": round(max(one.encoding for one in times), 6),
        "decoding": round(max(one.decoding for one in times), 6),
        "steps": max(one.steps for one in times),
        "rows": round(expansions / steps, 3) if steps else 0.0,
        "expansions": expansions,
        "reason": "deadline" if has_late else "finished",
    }


def _num_given(request: Request) -> int:
    """Return the tokens of a request, as which frames of features count."""
    # windows of a recording, whose seconds count
    is_window = isinstance(request.source, SharedFeatures)
    return (0 if is_window else len(request.source)) + len(request.target or ())


def num_generated(served: ServedResult) -> int:
    """Return the tokens of an answer, with those that end its hypotheses."""
    return sum(len(one.tokens) + one.ended for one in served.result.hypotheses)
