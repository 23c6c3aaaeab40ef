"""Who may ask through a browser: pages of this server, and those that an option names."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from pybeam.server.errors import APIError, refuse
from pybeam.server.settings import Settings

# they change nothing, and what they answer is for pages of this server alone
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
MAX_HOSTS = 64


class KnownOrigins:
    """Middleware: refuses what a browser sends for a page of another site.

    A page may send requests to every address that its reader's browser can reach, this machine's own too.
    Browsers name its site in `Origin`. A site whose name leads to this machine ("DNS rebinding") seems to be
    this server, but for the name in `Host`.

    Args:
        app: what is asked.
        settings: say which other origins may ask. A server that listens on a loopback address takes its own
            names in `Host`; any other takes all, unless names are given.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._origins = app, settings.cors_origins
        self._hosts = {name.lower() for name in settings.allowed_hosts}
        self._takes_all = not self._hosts and not _is_loopback(settings.host)
        # whether a `Host` is one of this server's names; clients choose it, so few are kept
        self._knows = lru_cache(MAX_HOSTS)(self._is_known)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None if scope["type"] == "lifespan" else self._refused(scope)
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await refuse(scope, receive, send, refused)

    def _is_known(self, host: str) -> bool:
        name = _name_of(host)
        return name in self._hosts or _is_loopback(name)

    def _refused(self, scope: Scope) -> APIError | None:
        host, origin = (_first(scope, name) for name in (b"host", b"origin"))
        # browsers always say it
        if host is not None and not (self._takes_all or self._knows(host)):
            return APIError(
                421,
                "this server does not go by the name in the header `Host`; start it with --allow-host "
                "for each name by which clients know it",
            )
        # a WebSocket has no method, and its answers are for whoever opens it
        if origin is None or scope.get("method") in SAFE_METHODS or "*" in self._origins:
            return None
        if origin in self._origins or (host and urlsplit(origin).netloc.lower() == host.lower()):
            return None
        return APIError(
            403,
            "the header `Origin` names another site, whose pages may not ask this server; --cors-origin "
            "allows it",
        )


def _first(scope: Scope, name: bytes) -> str | None:
    """Return the first header of this name; None: there is none."""
    value = next((value for key, value in scope["headers"] if key == name), None)
    return None if value is None else value.decode("latin-1")


def _name_of(host: str) -> str:
    """Return the name in a `Host`, without its port; "" if it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
