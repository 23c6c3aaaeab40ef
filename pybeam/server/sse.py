"""Server-sent events: what is certain of a text, as it becomes so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from pybeam.server.errors import ClientGone, from_service, respond
from pybeam.serving import BestSoFar, Certain, ServedResult, ServedStream

T = TypeVar("T")
Event = Certain | BestSoFar | ServedResult
# makes the server-sent events of one event of the service, or of news of a recording
Write = Callable[[Any], Iterable[str]]
Events = ServedStream | AsyncGenerator[Any, None]

# a client that leaves earlier is noticed then, where its connection does not tell: most answers are there
# before, and need nobody who watches
WATCH_SECONDS = 0.05
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Presence:
    """Whether the client at the other end of a connection is there. It tells who wants to know when it goes.

    Attributes:
        told: functions that are called then.
    """

    def __init__(self) -> None:
        self.told: set[Callable[[], None]] = set()
        self._has_gone = False

    def end(self) -> None:
        """Note that the client has gone."""
        self._has_gone = True
        for leave in list(self.told):
            leave()

    def tell(self, leave: Callable[[], None]) -> None:
        """Call this when the client goes, which may have been before."""
        self.told.add(leave)
        if self._has_gone:
            leave()


def event_of(data: Any, name: str | None = None) -> str:
    """Format one server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


async def unless_gone(http: Request, work: Awaitable[T]) -> T:
    """Await the work in this task, but cancel it when the client closes its connection.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.current_task()
    assert task is not None
    num_cancelled, is_over, is_gone = task.cancelling(), False, False

    def leave() -> None:
        nonlocal is_gone
        if not is_over:
            is_gone = task.cancel()

    presence: Presence | None = http.scope.get("state", {}).get("presence")
    watch = _Watch(http, leave) if presence is None else None
    if presence is not None:
        presence.tell(leave)
    try:
        return await work
    except asyncio.CancelledError:
        # somebody else may want this task to end, too
        if is_gone and task.uncancel() <= num_cancelled:
            raise ClientGone from None
        raise
    finally:
        is_over = True
        if presence is not None:
            presence.told.discard(leave)
        if watch is not None:
            watch.end()


class _Watch:
    """Waits for a client to go whose connection does not tell."""

    def __init__(self, http: Request, leave: Callable[[], None]) -> None:
        self._http, self._leave = http, leave
        self._task: asyncio.Future[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._begin)

    def end(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._gone())
        self._task.add_done_callback(lambda _: self._leave())

    async def _gone(self) -> None:
        while (await self._http.receive())["type"] != "http.disconnect":
            pass


async def streamed(
    http: Request, events: Events, write: Write, on_first: Callable[[], None]
) -> StreamingResponse:
    """Return a response that sends events while they come.

    It waits for the first one, so that a request that is refused or does not begin has its own status.

    Args:
        http: the request.
        events: of the service, or news of a recording.
        write: makes what is sent of each.
        on_first: called when the first one is there.

    Raises:
        APIError: the request failed before anything was certain.
    """
    try:
        first = await unless_gone(http, anext(events))
    except Exception as error:
        await events.aclose()
        raise from_service(error) from error
    on_first()
    body = _written(http, first, events, write)
    return StreamingResponse(body, media_type="text/event-stream", headers=HEADERS)


async def _written(http: Request, first: Any, events: Events, write: Write) -> AsyncIterator[str]:
    is_done = False
    try:
        for text in write(first):
            yield text
        async for event in events:
            for text in write(event):
                yield text
        is_done = True
    except Exception as error:
        is_done = True
        answer = respond(http.url.path, from_service(error))
        yield event_of(bytes(answer.body).decode(), "error")
    finally:
        http.state.client_has_gone = not is_done
        await events.aclose()
