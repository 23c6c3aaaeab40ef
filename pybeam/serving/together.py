"""Await several pieces of work: all of them, or their outcomes in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from typing import Any, TypeVar

T = TypeVar("T")
DONE = object()


async def together(work: Sequence[Awaitable[T]]) -> list[T]:
    """Await all; if one fails, the others are cancelled before its error is raised."""
    if len(work) == 1:
        # it needs no task of its own
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield what several sources yield, as it comes; they are closed together."""
    coming: dict[asyncio.Future[T], AsyncGenerator[T, None]] = {}
    try:
        coming.update((asyncio.ensure_future(anext(one)), one) for one in sources)
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = coming.pop(task)
                try:
                    found = task.result()
                except StopAsyncIteration:
                    continue
                coming[asyncio.ensure_future(anext(source))] = source
                yield found
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for one in sources:
            await one.aclose()


async def in_order(
    sources: Iterable[Any] | AsyncIterable[Any],
    start: Callable[[int, Any], Awaitable[T]],
    window: int,
) -> AsyncIterator[T]:
    """Yield the outcome of each source, in their order, as soon as it and all before it are there.

    Args:
        sources: are read as there is room, and may come slowly if they are asynchronous.
        start: begins the work for a source and its place.
        window: so many are read ahead.
    """
    coming = _numbered(sources)
    waiting: deque[asyncio.Future[T]] = deque()
    following: asyncio.Future[Any] | None = asyncio.ensure_future(anext(coming, DONE))
    problem: Exception | None = None
    try:
        while following is not None or waiting:
            awaited = [*([waiting[0]] if waiting else [])]
            if following is not None and len(waiting) < window:
                awaited.append(following)
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            while waiting and waiting[0].done():
                yield waiting.popleft().result()
            if following is not None and following.done() and len(waiting) < window:
                coming_next, following = following, None
                try:
                    found = coming_next.result()
                except Exception as error:
                    problem = error
                    continue
                if found is not DONE:
                    waiting.append(asyncio.ensure_future(start(*found)))
                    following = asyncio.ensure_future(anext(coming, DONE))
        # behind the outcomes of those that came before
        if problem is not None:
            raise problem
    finally:
        for one in (*waiting, *([] if following is None else [following])):
            one.cancel()


async def _numbered(sources: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[tuple[int, Any]]:
    place = 0
    if isinstance(sources, AsyncIterable):
        async for source in sources:
            yield place, source
            place += 1
        return
    for source in sources:
        yield place, source
        place += 1
