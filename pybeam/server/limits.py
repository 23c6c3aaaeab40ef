"""Bodies that are too large or too slow."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybeam.server.errors import APIError, respond
from pybeam.server.settings import Settings

AUDIO_PATH = "/v1/audio/transcriptions"


class BodyLimits:
    """Middleware: a body has a largest size, and a time in which it must have come.

    Without the second a client that stops in the middle would hold its connection for ever.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_audio = scope["path"] == AUDIO_PATH
        most = self._settings.max_audio if is_audio else self._settings.max_body
        body = _Body(receive, most, self._settings.body_timeout)
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            declared = dict(scope["headers"]).get(b"content-length", b"0")
            if declared.isdigit() and int(declared) > most:
                raise body.too_large()
            await self._app(scope, body.receive, watched)
        except _BodyError as error:
            if not has_begun:
                response = respond(scope["path"], error.answer, {"Connection": "close"})
                await response(scope, receive, send)


class _BodyError(BaseException):
    """Ends a request from within `receive`, past handlers that turn every error into another."""

    def __init__(self, answer: APIError) -> None:
        super().__init__(answer.message)
        self.answer = answer


class _Body:
    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._most, self._seconds = receive, most, seconds
        self._size = 0
        self._has_all = False
        self._end: float | None = None

    async def receive(self) -> Message:
        if self._has_all:
            return await self._receive()
        if self._end is None:
            self._end = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            raise _BodyError(
                APIError(408, f"the body must come within {self._seconds:g} seconds")
            ) from None
        self._size += len(message.get("body", b""))
        self._has_all = not message.get("more_body", False)
        if self._size > self._most:
            raise self.too_large()
        return message

    def too_large(self) -> _BodyError:
        return _BodyError(APIError(413, f"the body must have at most {self._most} bytes"))
