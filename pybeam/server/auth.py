"""API keys."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from pathlib import Path

from fastapi import Request

from pybeam.server.errors import APIError


class Keys:
    """The keys that open the server; without any it is open to all.

    Args:
        keys: the keys.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]

    @classmethod
    def load(cls, path: str | None, listed: str | None) -> Keys:
        """Read keys from a file, one per line, and from a text with commas between them.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file has no key, so that the server would be open.
        """
        keys = [key.strip() for key in (listed or "").split(",")]
        if path is not None:
            lines = [line.strip() for line in Path(path).read_text("utf-8").splitlines()]
            found = [line for line in lines if line and not line.startswith("#")]
            if not found:
                raise ValueError(f"{path} must have a key on each line, but has none")
            keys += found
        return cls(key for key in keys if key)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def check(self, request: Request, given: str | None = None) -> None:
        """Raise APIError unless the request has a key, in `Authorization: Bearer` or in `given`.

        The time that it takes does not depend on how much of a key is right.
        """
        if not self._keys:
            return
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        # headers are bytes, which come as if they were Latin-1
        key = token.encode("latin-1") if kind.lower() == "bearer" else (given or "").encode()
        matches = [hmac.compare_digest(key.strip(), own) for own in self._keys]
        if not any(matches):
            raise APIError(
                401, "an API key is missing or wrong; send the header `Authorization: Bearer KEY`"
            )
        request.state.client = f"key-{matches.index(True)}"


def client_of(request: Request) -> str:
    """Return whom the service counts this request to: the owner of the key, or the address."""
    owner = getattr(request.state, "client", None)
    return owner or (request.client.host if request.client else "unknown")
