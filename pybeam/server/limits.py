"""Bodies that are too large, too slow, never whole or not in UTF-8, and recordings that are too many."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from python_multipart.multipart import parse_options_header
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybeam.server.auth import caller_of
from pybeam.server.clients import Addresses
from pybeam.server.errors import RETRY_SECONDS, APIError, ClientGone, refuse
from pybeam.server.settings import Settings

# a key or an address, and its name
Client = tuple[str, str]
AUDIO_PATHS = {"/v1/audio/transcriptions", "/v1/audio/translations"}


class Clients:
    """Tells clients apart by their keys, or without keys by their addresses; see `Addresses`.

    Args:
        proxies: addresses and networks whose connections are those of many clients.
    """

    def __init__(self, proxies: Iterable[str] = ()) -> None:
        self._addresses = Addresses(proxies)

    def of(self, http: HTTPConnection) -> Client | None:
        """Return whom a request counts for; None: nobody."""
        caller = caller_of(http)
        if caller is not None:
            return "key", caller.name
        address = self._addresses.client(http.client.host if http.client else "")
        return None if address is None else ("address", address)


class Places:
    """A bound on the recordings and live sessions that are held in memory: of all clients, and of each.

    See `Clients` for who is one.
    """

    def __init__(self, settings: Settings) -> None:
        self._most, each = settings.max_recordings, settings.max_recordings_per_client
        # one client alone leaves places to others
        self._most_each = (self._most + 1) // 2 if each is None else each
        self._clients = Clients(settings.forwarded_allow_ips)
        self._num_taken, self._of_client = 0, Counter[Client]()

    @contextmanager
    def one(self, http: HTTPConnection) -> Iterator[None]:
        """Take a place. Raises APIError if there is none, or none for this client."""
        client = self._clients.of(http)
        if self._num_taken >= self._most:
            problem = f"at most {self._most} recordings are transcribed at a time; try again later"
            raise APIError(429, problem, retry_after=RETRY_SECONDS)
        if client is not None and self._of_client[client] >= self._most_each:
            problem = f"a client may have {self._most_each} recordings transcribed at a time; wait for one"
            raise APIError(429, problem, retry_after=RETRY_SECONDS)
        taken = [] if client is None else [client]
        self._num_taken += 1
        self._of_client.update(taken)
        try:
            yield
        finally:
            self._num_taken -= 1
            self._of_client.subtract(taken)
            # so that clients who have come and gone take no memory
            self._of_client += Counter()


class _Held:
    """A bound on the bytes of bodies of requests that are being answered."""

    def __init__(self, most: int) -> None:
        self._most, self._num_bytes = most, 0

    def add(self, num: int) -> None:
        """Count bytes that have come. Raises _BodyError if they are too many."""
        self._num_bytes += num
        if self._num_bytes > self._most:
            problem = f"requests of {self._most} bytes are answered at a time; try again later"
            raise _BodyError(APIError(429, problem, retry_after=RETRY_SECONDS))

    def remove(self, num: int) -> None:
        """Count them no longer."""
        self._num_bytes -= num


class BodyLimits:
    """Middleware: a body has a largest size, a time in which it must have come, and one charset.

    Without the second a client that stops in the middle would hold its connection for ever. Without the third
    forms would be decoded in the charset that they name, and Python takes quadratic time for some.

    All bodies together are bounded as well: lists of JSON take twenty times as much memory. Recordings are
    not counted, because they lie on the disk.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings, self._held = app, settings, _Held(settings.max_bodies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_audio = scope["path"] in AUDIO_PATHS
        most = self._settings.max_audio if is_audio else self._settings.max_body
        held = None if is_audio else self._held
        # one that has come needs no timer
        is_whole = scope.get("state", {}).get("is_whole", False)
        body = _Body(receive, most, None if is_whole else self._settings.body_timeout, held)
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            declared = dict(scope["headers"]).get(b"content-length", b"0")
            if declared.isdigit() and int(declared) > most:
                raise body.too_large()
            if not _is_unicode(scope):
                problem = "the body must be in UTF-8, but `Content-Type` names another charset"
                raise _BodyError(APIError(415, problem))
            await self._app(scope, body.receive, watched)
        except _BodyError as error:
            is_gone = isinstance(error.answer, ClientGone)
            scope.setdefault("state", {})["client_has_gone"] = is_gone
            if not (has_begun or is_gone):
                await refuse(scope, receive, send, error.answer)
        finally:
            scope.setdefault("state", {})["request_bytes"] = body.size
            if held is not None:
                held.remove(body.size)


def _is_unicode(scope: Scope) -> bool:
    """Whether a body is in UTF-8 by all of its headers; Starlette takes the first of several."""
    kinds = [value for name, value in scope["headers"] if name == b"content-type"]
    return all(map(_says_unicode, kinds))


# clients choose the header, so few are kept
@lru_cache(64)
def _says_unicode(kind: bytes) -> bool:
    return parse_options_header(kind)[1].get(b"charset", b"utf-8").lower() in (b"utf-8", b"utf8")


class _BodyError(BaseException):
    """Ends a request from within `receive`, past handlers that turn every error into another."""

    def __init__(self, answer: APIError) -> None:
        super().__init__(answer.message)
        self.answer = answer


class _Body:
    def __init__(
        self, receive: Receive, most: int, seconds: float | None, held: _Held | None
    ) -> None:
        self._receive, self._most, self._seconds, self._held = receive, most, seconds, held
        self.size = 0
        self._has_all = False
        self._end: float | None = None

    async def receive(self) -> Message:
        if self._has_all:
            return await self._receive()
        message = await (self._receive() if self._seconds is None else self._in_time(self._seconds))
        if message["type"] == "http.disconnect":
            raise _BodyError(ClientGone())
        num = len(message.get("body", b""))
        self.size += num
        if self._held is not None:
            self._held.add(num)
        self._has_all = not message.get("more_body", False)
        if self.size > self._most:
            raise self.too_large()
        return message

    async def _in_time(self, seconds: float) -> Message:
        if self._end is None:
            self._end = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(self._end):
                return await self._receive()
        except TimeoutError:
            problem = f"the body must come within {seconds:g} seconds"
            raise _BodyError(APIError(408, problem)) from None

    def too_large(self) -> _BodyError:
        return _BodyError(APIError(413, f"the body must have at most {self._most} bytes"))
