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

# a client that leaves earlier is noticed then: most answers are there before, and need nobody who watches
WATCH_SECONDS = 0.05
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


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

    def leave(_: asyncio.Future[None]) -> None:
        nonlocal is_gone
        if not is_over:
            is_gone = task.cancel()

    watcher: asyncio.Future[None] | None = None

    def watch() -> None:
        nonlocal watcher
        watcher = asyncio.ensure_future(_gone(http))
        watcher.add_done_callback(leave)

    timer = asyncio.get_running_loop().call_later(WATCH_SECONDS, watch)
    try:
        return await work
    except asyncio.CancelledError:
        # somebody else may want this task to end, too
        if is_gone and task.uncancel() <= num_cancelled:
            raise ClientGone from None
        raise
    finally:
        is_over = True
        timer.cancel()
        if watcher is not None:
            watcher.cancel()


async def _gone(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
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
