"""Logs of one JSON object per line, which never hold a text or a token of a request."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pybeam.server.audit import AuditLog
from pybeam.server.errors import begins_answer
from pybeam.server.gates import OPEN_PATHS
from pybeam.server.metrics import Metrics

logger = logging.getLogger("pybeam.server.access")

REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
ENCODER = json.JSONEncoder(ensure_ascii=False)
# stands for all paths that are no endpoint, which clients choose
OTHER_PATH = "other"
# https://www.w3.org/TR/trace-context/#traceparent-header
TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")


def time_of(seconds: float) -> str:
    """Write a time, in seconds since 1970, as ISO 8601 does."""
    whole, part = divmod(seconds, 1)
    return f"{_second(int(whole))}.{int(1000 * part):03d}Z"


@lru_cache(4)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class JSONFormatter(logging.Formatter):
    """Writes a record, and what its `fields` hold, as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": time_of(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        found |= getattr(record, "fields", {})
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return ENCODER.encode(found)


def set_up(level: str) -> None:
    """Write the logs of this process to stderr, as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JSONFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # it says when it starts and stops, and so do we
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
    # such as that a recording seems to be cut
    logging.captureWarnings(True)
    # which the lines do not say
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    # nor where they were written, for which each record looks at the frames above it
    logging._srcfile = None
    # a full disk under the logs must not write tracebacks about itself
    logging.raiseExceptions = False


@dataclass(frozen=True)
class Trace:
    """Who asked: the ids of a request, its own or the client's."""

    request_id: str
    trace_id: str
    parent_id: str | None
    span_id: str
    flags: str

    @classmethod
    def of(cls, headers: dict[bytes, bytes]) -> Trace:
        """Take the ids from the headers; make those that are missing or malformed."""
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        parent = TRACEPARENT.fullmatch(headers.get(b"traceparent", b"").decode("latin-1"))
        # the system is asked once for all of them
        made = secrets.token_hex(40)
        return cls(
            given if REQUEST_ID.fullmatch(given) else made[:32],
            parent[1] if parent else made[32:64],
            parent[2] if parent else None,
            made[64:],
            parent[3] if parent else "00",
        )

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of an answer that say which request it is for."""
        return [
            (b"x-request-id", self.request_id.encode()),
            (b"traceparent", self.traceparent.encode()),
        ]


class AccessLog:
    """Middleware: gives every request an id, and logs and counts how it ended.

    Args:
        app: what is asked.
        metrics: count.
        audit: has a line of every request but those that operators ask all the time; None: there is none.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, audit: AuditLog | None = None) -> None:
        self._app, self._metrics, self._audit = app, metrics, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        if scope["type"] == "http":
            # where the connection has not said so, or its body is still to come
            state.setdefault("arrived", time.monotonic())
        # a span has begun outside, if spans are wanted
        trace = state.get("trace") or Trace.of(dict(scope["headers"]))
        start, status, num_bytes = time.perf_counter(), 500, 0

        async def noted(message: Message) -> None:
            nonlocal status, num_bytes
            num_bytes += len(message.get("body") or message.get("text") or "")
            if begins_answer(message):
                # a WebSocket has none, and its handshake has this one
                status = message.get("status", 101)
                message["headers"] = [*message.get("headers", ()), *trace.headers]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            # a stream has sent its status long before its client goes
            status = 499 if state.get("client_has_gone") else status
            route = scope.get("route")
            path = getattr(route, "path", OTHER_PATH)
            self._metrics.answered(path, status)
            fields: dict[str, Any] = {
                "request_id": trace.request_id,
                "trace_id": trace.trace_id,
                "span_id": trace.span_id,
                "parent_id": trace.parent_id,
                "method": scope.get("method", "GET"),
                "path": path,
                "status": status,
                "seconds": round(time.perf_counter() - start, 6),
                **state.get("log_fields", {}),
            }
            state["record"] = fields
            logger.info("answered", extra={"fields": fields})
            if self._audit is not None and path not in OPEN_PATHS:
                self._audit.write(fields | _audited(scope, num_bytes))


def _audited(scope: Scope, num_bytes: int) -> dict[str, Any]:
    """Return what the audit log has beside the fields of the other."""
    caller, client = scope["state"].get("caller"), scope.get("client")
    return {
        "time": time_of(time.time()),
        "key": caller and caller.name,
        "address": client and client[0],
        "request_bytes": scope["state"].get("request_bytes", 0),
        "response_bytes": num_bytes,
    }
