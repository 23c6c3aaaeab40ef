"""The parts that both clients share: the bodies of requests, answers and errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import httpx

# answers after which the same request may succeed
RETRIED = {429, 503}
DEFAULT_RETRY_SECONDS = 1.0
# a client does not wait for the end of the day, when the quota of its key begins anew
LONGEST_RETRY_SECONDS = 60.0


class ServerError(Exception):
    """The server answered with an error.

    Attributes:
        status: the HTTP status: 400, 401, 404, 413, 422, 429, 500, 503 or 504.
        field: the field of the request at fault, if the server names one.
        retry_after: seconds after which the same request may succeed; None: it will not.
    """

    def __init__(
        self, status: int, message: str, field: str | None, retry_after: float | None
    ) -> None:
        super().__init__(status, message, field, retry_after)
        self.status, self.field, self.retry_after = status, field, retry_after

    def __str__(self) -> str:
        return f"{self.status}: {self.args[1]}"


def headers_of(api_key: str | None) -> dict[str, str]:
    """Return the headers of every request."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def error_of(response: httpx.Response) -> ServerError:
    """Return the error that an answer, read whole, stands for."""
    try:
        found = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        found = response.text
    return _error(response.status_code, found, response.headers.get("retry-after"))


def _error(status: int, found: Any, retry_after: str | None) -> ServerError:
    wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    if status in RETRIED and wait is None:
        wait = DEFAULT_RETRY_SECONDS
    if isinstance(found, dict):
        return ServerError(status, found.get("message", ""), found.get("param"), wait)
    return ServerError(status, str(found), None, wait)


def seconds_to_retry(response: httpx.Response, is_last: bool) -> float:
    """Return the seconds after which to ask again; raises the answer's ServerError if that is useless."""
    error = error_of(response)
    if error.retry_after is None or is_last or error.retry_after > LONGEST_RETRY_SECONDS:
        raise error
    return error.retry_after


def recording(file: str | os.PathLike[str] | BinaryIO) -> dict[str, Any]:
    """Return the part of a form with a recording."""
    content = Path(file).read_bytes() if isinstance(file, str | os.PathLike) else file.read()
    return {"file": ("recording.wav", content, "audio/wav")}


class Events:
    """Takes the lines of server-sent events; gives the text that has become certain.

    Raises:
        ServerError: the server could not finish.
    """

    def __init__(self) -> None:
        self._name = ""

    def delta(self, line: str) -> str:
        """Return the text of this line, "" if it has none."""
        kind, _, value = line.partition(": ")
        if kind == "event":
            self._name = value
        elif kind == "data" and self._name == "certain":
            found: str = json.loads(value)["delta"]
            return found
        elif kind == "data" and self._name == "error":
            raise _error(500, json.loads(value)["error"], None)
        return ""
