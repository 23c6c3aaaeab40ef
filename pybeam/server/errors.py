"""Errors and their status codes, in the form that the clients of each path expect."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from pybeam.arguments import ArgumentError
from pybeam.serving import (
    DeadlineExceeded,
    EngineCrashed,
    EngineStalled,
    QueueFull,
    ServiceClosed,
)

logger = logging.getLogger(__name__)

# how long a client should wait before it asks a server again that stops or has stalled
RETRY_SECONDS = 5
# LibreTranslate's clients read `error` as a text, all others as OpenAI's object
LIBRETRANSLATE_PATHS = {
    *("/translate", "/translate_file", "/languages", "/detect", "/suggest", "/frontend/settings"),
}
DOWNLOADS = "/download_file/"
# OpenAI's names for the kinds of errors
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
# and for mistakes of bodies that programs look for
MISTAKES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
# what a validation error is found in, before the field's name
PLACES = {"body", "query", "path", "header"}
ARGUMENT = re.compile(r"`(?:Request\.)?(\w+)`")


class APIError(Exception):
    """An answer that is no result.

    Args:
        status: the HTTP status.
        message: what was expected, what was found, and the remedy; without any text of the request.
        field: the field of the request at fault.
        code: OpenAI's name for what is wrong, if it has one.
        retry_after: seconds after which the same request may succeed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        field: str | None = None,
        *,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.code = status, message, field, code
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


class ClientGone(APIError):
    """The client closed its connection. Nobody reads the answer; it is counted."""

    def __init__(self) -> None:
        super().__init__(499, "the client closed the connection")


def refused(error: Exception) -> APIError:
    """Return the answer to a request that fits the schema, but that the model or the search refuses."""
    found = ARGUMENT.search(str(error))
    name = error.name if isinstance(error, ArgumentError) else found and found[1]
    return APIError(422, str(error), name or None)


def from_service(error: Exception) -> APIError:
    """Return the answer to a request that the service has not finished.

    The error loses its traceback. With that it would keep itself, the request and its tasks until garbage is
    collected, and where many requests fail, that takes a tenth of a second, in which nobody is answered.
    """
    answer = _answer_to(error)
    error.__traceback__ = None
    return answer


def _answer_to(error: Exception) -> APIError:
    match error:
        case APIError():
            return error
        case QueueFull():
            return APIError(429, str(error), retry_after=error.retry_after)
        case DeadlineExceeded() if error.retry_after is not None:
            return APIError(503, str(error), "timeout", retry_after=error.retry_after)
        case DeadlineExceeded():
            return APIError(
                504, str(error) or "the request was not finished in its time", "timeout"
            )
        case ServiceClosed() | EngineStalled() | EngineCrashed():
            return APIError(503, str(error), retry_after=RETRY_SECONDS)
        # one that names no argument is about the model, such as NaN in its logits
        case TypeError() | ValueError() if ARGUMENT.search(str(error)):
            return refused(error)
    logger.error("a request failed", exc_info=error)
    return APIError(500, f"{type(error).__name__} while decoding; the server's log has more")


def content_of(error: APIError) -> dict[str, Any]:
    """Return an error as OpenAI's API writes it."""
    kind = KINDS.get(error.status, "server_error" if error.status >= 500 else "")
    return {
        "message": error.message,
        "type": kind or "invalid_request_error",
        "param": error.field,
        "code": error.code,
    }


def begins_answer(message: Message) -> bool:
    """Whether a message has the headers of an answer, to a request or to a WebSocket's handshake."""
    kinds = ("http.response.start", "websocket.http.response.start", "websocket.accept")
    return message["type"] in kinds


def respond(path: str, error: APIError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Make the response to a request of this path."""
    content: object = error.message
    if path not in LIBRETRANSLATE_PATHS and not path.startswith(DOWNLOADS):
        content = content_of(error)
    headers = {**error.headers, **(headers or {})}
    return JSONResponse({"error": content}, error.status, headers)


async def refuse(scope: Scope, receive: Receive, send: Send, error: APIError) -> None:
    """Answer a request with an error, and close its connection."""
    response = respond(scope["path"], error, {"Connection": "close"})
    await response(scope, receive, send)


def response_to(path: str, error: Exception) -> JSONResponse | None:
    """Make the response to a request of this path that raised an error; None: it is a mistake of ours."""
    match error:
        case APIError():
            return respond(path, error)
        case RequestValidationError():
            return respond(path, wrong_body(error.errors()))
        case HTTPException():
            found = APIError(error.status_code, str(error.detail))
            return respond(path, found, error.headers)
    return None


def install(app: FastAPI) -> None:
    """Let the app answer errors in this way."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        found = response_to(request.url.path, error)
        assert found is not None, "there is an answer to each of these kinds"
        return found

    for kind in (APIError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)

    @app.exception_handler(Exception)
    async def _mistake(request: Request, error: Exception) -> JSONResponse:
        return respond(request.url.path, APIError(500, "the server failed; its log has more"))


def wrong_body(errors: Sequence[Mapping[str, Any]]) -> APIError:
    """Return the answer to a body that does not fit the schema; it names the first field at fault.

    Args:
        errors: as pydantic lists them.
    """
    # of a union, what a rule of ours says is better than that it is not of the other type
    first = next((one for one in errors if one["type"] == "value_error"), errors[0])
    # pydantic adds the types of a union and the like behind the field's name
    path = [part for part in first["loc"] if part not in PLACES]
    field = str(path[0]) if path else None
    name, problem = f"`{field}`" if field else "the body", f": {first['msg']}"
    if first["type"] == "extra_forbidden":
        problem = " is no field of this request; leave it out"
    elif first["type"] == "value_error":
        problem = f" {first['ctx']['error']}"
    code = MISTAKES.get(first["type"], "invalid_value")
    return APIError(400, name + problem, field, code=code)
