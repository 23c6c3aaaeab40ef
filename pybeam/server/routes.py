"""Routes: FastAPI documents endpoints, and requests do without it where they can."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from fastapi import Request
from fastapi.params import Depends
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybeam.server.errors import APIError, response_to, wrong_body

Read = TypeVar("Read", bound=BaseModel)
# finds an argument of an endpoint in a request
Find = Callable[[Request], Awaitable[Any]]


class Route(APIRoute):
    """A route whose endpoint asks for the request, a body of JSON and functions of the request, once for all.

    FastAPI solves the arguments of each request anew, and validates its answer again, which takes longer than
    what the endpoint does. It still handles the endpoints that ask for more, such as a form. Routes stand in
    the application's own list; in a router that is included FastAPI would handle all of them.

    Attributes:
        is_direct: whether FastAPI has no part in its requests.
    """

    is_direct = False

    def __init__(self, path: str, endpoint: Callable[..., Any], **facts: Any) -> None:
        super().__init__(path, endpoint, **facts)
        hints = get_type_hints(endpoint, include_extras=True)
        hints.pop("return", None)
        found = {name: _finder(hint) for name, hint in hints.items()}
        arguments = {name: find for name, find in found.items() if find is not None}
        if self.dependencies or len(arguments) < len(found):
            return
        write = TypeAdapter(self.response_model or Any).dump_json
        status, excludes_none = self.status_code or 200, self.response_model_exclude_none

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            http = Request(scope, receive, send)
            given = {name: await find(http) for name, find in arguments.items()}
            answer = await endpoint(**given)
            if not isinstance(answer, Response):
                content = write(answer, exclude_none=excludes_none)
                answer = Response(content, status, media_type="application/json")
            await answer(scope, receive, send)

        # in place of FastAPI's own
        self.app, self.is_direct = app, True


class Direct:
    """Middleware: requests whose path is that of an endpoint go there at once.

    FastAPI would compare each path with the patterns of all routes, one after the other, and pass a request
    through layers of its own. It still has all other requests.

    Args:
        app: FastAPI's part.
        routes: of endpoints.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, Route) and route.is_direct and "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get((scope.get("method", ""), scope.get("path", "")))
        if route is None or scope["type"] != "http" or scope.get("root_path"):
            await self._app(scope, receive, send)
            return
        scope.update(route=route, endpoint=route.endpoint, path_params={})
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await route.app(scope, receive, noted)
        except Exception as error:
            answer = None if has_begun else response_to(scope["path"], error)
            if answer is None:
                raise
            await answer(scope, receive, send)


def _finder(hint: Any) -> Find | None:
    """Return what finds an argument of this type; None: FastAPI has to."""
    if hint is Request:
        return _itself
    if get_origin(hint) is Annotated:
        asked = [one for one in get_args(hint) if isinstance(one, Depends)]
        return _of_request(asked[0]) if asked else None
    if inspect.isclass(hint) and issubclass(hint, BaseModel):
        return partial(_body, hint)
    return None


async def _itself(http: Request) -> Request:
    return http


def _of_request(asked: Depends) -> Find:
    function = asked.dependency
    assert function is not None and len(inspect.signature(function).parameters) == 1
    return function


async def _body(kind: type[Read], http: Request) -> Read:
    content: Any = await _content(http)
    if not content:
        raise wrong_body([{"type": "missing", "loc": (), "msg": "Field required"}])
    if is_json(http.headers.get("content-type", "")):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError):
            raise APIError(400, "the body must be JSON in UTF-8, but cannot be read") from None
    return validated(kind, content)


async def _content(http: Request) -> bytes:
    """Read a body, which most often comes in one piece."""
    parts: list[bytes] = []
    while True:
        message = await http.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    content = b"".join(parts)
    # where `Request.body` looks for it when an endpoint asks again
    http._body = content
    return content


def is_json(content_type: str) -> bool:
    """Whether the header `Content-Type` says that a body is JSON."""
    kind, _, subtype = content_type.partition(";")[0].strip().lower().partition("/")
    return kind == "application" and (subtype == "json" or subtype.endswith("+json"))


def validated(kind: type[Read], given: Any) -> Read:
    """Return a body as the schema has it. Raises APIError if it does not fit."""
    try:
        return kind.model_validate(given, from_attributes=True)
    except ValidationError as error:
        raise wrong_body(error.errors()) from None
