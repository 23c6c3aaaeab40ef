"""The door: where too many wait, requests are refused before their bodies become requests of the service."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request as HTTPRequest
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybeam.server.calls import MAX_INLINE, Calls
from pybeam.server.errors import APIError, respond
from pybeam.server.models import ServedModel
from pybeam.server.routes import Route, is_json
from pybeam.server.schemas import Serving

TRANSLATE = "/translate"
PATHS = {
    *("/v1/translations", "/v1/decode", "/v1/score", "/v1/completions", "/v1/chat/completions"),
    TRANSLATE,
}
# of a request that has not begun: so long do requests wait only where the event loop has too much to do
LAG_SECONDS = 0.05


class Door:
    """Middleware: refuses a request at once that the service would refuse, or whose time is over.

    To understand a body, to find its tokens and to hand it to the service takes as long as all else that the
    event loop does for an answer. Where more requests come than can be answered, the loop and the engines
    would spend their time on those that get none. The door reads of a body which model it names, its time
    and its priority, and asks the service. The endpoint has what the door cannot tell, and what is wrong.

    Args:
        app: what is asked.
        calls: ask the service.
        routes: of endpoints.
    """

    def __init__(self, app: ASGIApp, calls: Calls, routes: Iterable[BaseRoute]) -> None:
        self._app, self._calls = app, calls
        # for the log
        self._routes = {one.path: one for one in routes if isinstance(one, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._looks_at(scope):
            await self._app(scope, receive, send)
            return
        message = await receive()
        error = self._refusal(scope, message)
        if error is not None:
            scope["route"] = self._routes[scope["path"]]
            await respond(scope["path"], error)(scope, receive, send)
            return
        is_read = False

        async def again() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return message

        await self._app(scope, again, send)

    def _looks_at(self, scope: Scope) -> bool:
        """Whether a request has come whole and others wait, for the service or for the event loop."""
        if scope["type"] != "http" or scope["path"] not in PATHS or scope["method"] != "POST":
            return False
        state: dict[str, Any] = scope.get("state", {})
        if not state.get("is_whole"):
            return False
        has_waited = time.monotonic() > state["arrived"] + LAG_SECONDS
        return has_waited or not self._calls.service.has_room

    def _refusal(self, scope: Scope, message: Message) -> APIError | None:
        """Return why a request is refused, by all models that may be meant; None: the endpoint has to say."""
        http, body = HTTPRequest(scope), message.get("body", b"")
        is_small = len(body) <= MAX_INLINE and not message.get("more_body", False)
        if not is_small or not is_json(http.headers.get("content-type", "")):
            return None
        try:
            given = json.loads(body)
            if not isinstance(given, dict):
                return None
            # LibreTranslate has none of the others, and ignores them
            names = ("model",) if scope["path"] == TRANSLATE else Serving.model_fields
            serving = Serving(**{name: given[name] for name in names if name in given})
            errors = [self._calls.refusal(http, one, serving) for one in self._meant(given)]
        except (ValueError, TypeError, RecursionError, ValidationError, APIError):
            return None
        return None if None in errors else next(iter(errors), None)

    def _meant(self, given: dict[str, Any]) -> list[ServedModel]:
        """Return the models of which a body may mean one."""
        models = [one for one in self._calls.models if not one.takes_sound]
        if (name := given.get("model")) is not None:
            return [one for one in models if one.name == name]
        return models
