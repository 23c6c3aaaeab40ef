"""API keys: who has one, and what it may ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybeam.server.connections import REALTIME
from pybeam.server.errors import DOWNLOADS, LIBRETRANSLATE_PATHS, APIError, begins_answer, refuse
from pybeam.server.gates import OPEN_PATHS
from pybeam.server.key_file import digest_of, read_keys
from pybeam.server.quotas import Allowance
from pybeam.server.settings import KeyLimits

# beside those that are open while the server stops: pages, and their files
KEYLESS_PATHS = {
    *("/", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"),
    *("/languages", "/frontend/settings"),
}
# translated files lie at addresses that nobody guesses
KEYLESS_FOLDERS = ("/page/", "/static-offline-docs/", DOWNLOADS)
# which keys of administrators open, and nothing else
ADMIN_FOLDER = "/admin/"
# what is asked there is paid by seconds of sound
AUDIO_FOLDERS = ("/v1/audio/", REALTIME)
# in which browsers send a key, whose WebSockets have no headers
KEY_PROTOCOL = b"openai-insecure-api-key."


@dataclass(frozen=True)
class Caller:
    """Whoever has a key.

    Attributes:
        name: of the key, for logs.
        limits: of what it may ask for.
        allowance: what is left of that.
    """

    name: str
    limits: KeyLimits
    allowance: Allowance


class Withdrawn(Exception):
    """The key of a session is no more."""


class Keys:
    """The keys that open the server; without any it is open to all.

    Args:
        keys: keys without limits.
        path: a file of more keys with limits, as `pybeam key` makes them.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has no keys, or is wrong.
    """

    def __init__(self, keys: Iterable[str] = (), path: str | None = None) -> None:
        own = [
            (f"key-{i}", digest_of(key), KeyLimits()) for i, key in enumerate(dict.fromkeys(keys))
        ]
        self._own, self.path = own, path
        self._callers: dict[bytes, Caller] = {}
        self.reload()

    @classmethod
    def load(cls, path: str | None, listed: str | None, limited_path: str | None = None) -> Keys:
        """Read keys from a file, one per line, from a text with commas between them, and from a TOML file.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file has no key, so that the server would be open, or it is wrong.
        """
        keys = [key.strip() for key in (listed or "").split(",")]
        if path is not None:
            lines = [line.strip() for line in Path(path).read_text("utf-8").splitlines()]
            found = [line for line in lines if line and not line.startswith("#")]
            if not found:
                raise ValueError(f"{path} must have a key on each line, but has none")
            keys += found
        return cls((key for key in keys if key), limited_path)

    def __bool__(self) -> bool:
        return bool(self._callers)

    def reload(self) -> None:
        """Read the file again; all that keys have used of their limits stays used.

        Raises:
            OSError: it cannot be read.
            ValueError: it is wrong. Nothing has changed then.
        """
        found = [*self._own, *(read_keys(self.path) if self.path is not None else ())]
        names, digests = {name for name, _, _ in found}, {digest for _, digest, _ in found}
        if min(len(names), len(digests)) < len(found):
            raise ValueError(
                f"each key must have a name of its own, but two of {self.path} are the same"
            )
        allowances = {one.name: one.allowance for one in self._callers.values()}
        callers = {}
        for name, digest, limits in found:
            # requests that are being answered have it, too
            allowance = allowances.get(name) or Allowance()
            allowance.change(limits)
            callers[digest] = Caller(name, limits, allowance)
        self._callers = callers

    def admit(self, scope: Scope, key: bytes | None) -> None:
        """Let a request of this key begin; None: it has none.

        Raises:
            APIError: 401, the key is missing or wrong; 429, nothing is left of its limits.
        """
        unit = "audio_seconds" if scope["path"].startswith(AUDIO_FOLDERS) else "tokens"
        self.know(scope, key, unit).allowance.begin(unit)

    def know(self, scope: Scope, key: bytes | None, unit: str) -> Caller:
        """Return whose key it is, who pays for this request in `unit`. None: there is none.

        The time that this takes does not depend on how much of a key is right: a hash is looked up.

        Raises:
            APIError: 401, the key is missing, wrong or withdrawn.
        """
        caller = None if key is None else self._callers.get(digest_of(key.strip()))
        if caller is None:
            raise APIError(
                401,
                "an API key is missing or wrong; send the header `Authorization: Bearer KEY`",
                code="invalid_api_key",
            )
        scope.setdefault("state", {}).update(caller=caller, unit=unit)
        return caller

    def check(self, request: HTTPConnection, given: str | None = None) -> None:
        """Raise APIError unless the request has been admitted, or the key that its body gives admits it."""
        if self and caller_of(request) is None:
            self.admit(request.scope, None if given is None else given.encode())


class Admission:
    """Middleware: whoever has no key, or has used it up, is refused before the body is read.

    LibreTranslate's clients have the key in the body. Their endpoints call `Keys.check` when it has come.

    Args:
        app: what is asked.
        keys: that are asked for.
    """

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_admin = scope["type"] != "lifespan" and scope["path"].startswith(ADMIN_FOLDER)
        is_free = not self._keys and not is_admin
        if scope["type"] == "lifespan" or is_free or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return

        async def with_limits(message: Message) -> None:
            if begins_answer(message):
                caller: Caller | None = scope.get("state", {}).get("caller")
                if caller is not None:
                    message["headers"] = [*message.get("headers", ()), *caller.allowance.headers()]
            await send(message)

        key = bearer_of(scope)
        if key is not None or scope["path"] not in LIBRETRANSLATE_PATHS:
            try:
                if self._keys:
                    self._keys.admit(scope, key)
                if is_admin:
                    _check_admin(scope)
            except APIError as error:
                await refuse(scope, receive, with_limits, error)
                return
        await self._app(scope, receive, with_limits)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path in KEYLESS_PATHS or path.startswith(KEYLESS_FOLDERS)


def _check_admin(scope: Scope) -> None:
    """Raise APIError unless a request that has been admitted has the key of an administrator."""
    caller: Caller | None = scope.get("state", {}).get("caller")
    if caller is None or not caller.limits.admin:
        raise APIError(
            403,
            "this needs an administrator's key; `pybeam key NAME --admin` makes one for the file of "
            "`pybeam serve --keys`",
        )


def bearer_of(scope: Scope) -> bytes | None:
    """Return the key in `Authorization: Bearer KEY`, or among the protocols of a browser's WebSocket.

    None: there is none.
    """
    for name, value in scope["headers"]:
        if name == b"authorization":
            kind, _, key = value.partition(b" ")
            return key if kind.lower() == b"bearer" else None
    protocols = [one.encode() for one in scope.get("subprotocols", ())]
    keys = [one.removeprefix(KEY_PROTOCOL) for one in protocols if one.startswith(KEY_PROTOCOL)]
    return next(iter(keys), None)


def caller_of(request: HTTPConnection) -> Caller | None:
    """Return whose key a request has; None: it has none, as the server asks for none."""
    found: Caller | None = request.scope.get("state", {}).get("caller")
    return found


def client_of(request: HTTPConnection) -> str:
    """Return whom the service counts this request to: the owner of the key, or the address."""
    caller = caller_of(request)
    if caller is not None:
        return caller.name
    return request.client.host if request.client else "unknown"


def charge(request: HTTPConnection, unit: str, amount: float) -> None:
    """Take tokens or audio_seconds from the key of a request, if it has one and is paid in this unit."""
    caller = caller_of(request)
    if caller is not None and request.state.unit == unit:
        caller.allowance.take(unit, amount)


def check_sound(request: HTTPConnection) -> None:
    """Raise APIError, 429, if nothing is left of the seconds of sound that a request's key may use."""
    caller = caller_of(request)
    if caller is not None:
        caller.allowance.check("audio_seconds")


def charge_given(request: HTTPConnection, num_tokens: int, seconds: float) -> None:
    """Take what a request that is paid in tokens brings: tokens, and seconds of sound as features.

    Seconds of recordings count as they are decoded.
    """
    caller = caller_of(request)
    if caller is not None and request.state.unit == "tokens":
        caller.allowance.take("tokens", num_tokens)
        caller.allowance.take("audio_seconds", seconds)
