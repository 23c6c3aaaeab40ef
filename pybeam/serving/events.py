"""`ServedStream`: what a request says while it is decoded, for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future

from pybeam.request import Partial
from pybeam.serving.answers import BestSoFar, Certain, ServedResult
from pybeam.serving.bell import own_bell

Event = Certain | BestSoFar | ServedResult


class Mailbox:
    """The latest news of a request, from the engine's thread to a task.

    Only the latest is kept, so that a slow reader costs nothing: all that was certain before it begins with.
    """

    def __init__(self) -> None:
        self._bell = own_bell()
        self._has_news = asyncio.Event()
        self._lock = threading.Lock()
        self._news: Partial | None = None
        self._num_told = 0
        self._best: list[int] | None = None

    def put(self, partial: Partial) -> None:
        """Replace the news; any thread may call it."""
        with self._lock:
            is_first, self._news = self._news is None, partial
        if is_first:
            self.wake()

    def wake(self) -> None:
        """Wake the task that waits; any thread may call it."""
        self._bell.call(self._has_news.set)

    async def wait(self) -> None:
        """Wait until there is news, or `wake` is called."""
        await self._has_news.wait()
        self._has_news.clear()

    def take(self) -> list[Event]:
        """Return what is new since the last call."""
        with self._lock:
            news, self._news = self._news, None
        events: list[Event] = []
        if news is not None and len(news.tokens) > self._num_told:
            self._num_told = len(news.tokens)
            events.append(Certain(news.tokens))
        if news is not None and news.best is not None and news.best != self._best:
            self._best = news.best
            events.append(BestSoFar(news.best))
        return events


class ServedStream(AsyncIterator[Event]):
    """The events of a request while it is decoded, and its `ServedResult` at the end; see `Service.stream`.

    One task iterates over it. To close it or to drop it cancels the request.

    Args:
        future: of the result.
        mailbox: has what is said before it.
    """

    def __init__(self, future: Future[ServedResult], mailbox: Mailbox) -> None:
        self._future, self._mailbox = future, mailbox
        self._events: list[Event] = []
        self._is_over = False
        future.add_done_callback(lambda _: mailbox.wake())

    def __aiter__(self) -> ServedStream:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._is_over:
                raise StopAsyncIteration
            # asked first, because news may come until then
            is_done = self._future.done()
            self._events = self._mailbox.take()
            if self._events:
                break
            if is_done:
                self._is_over = True
                return self._future.result()
            try:
                await self._mailbox.wait()
            except asyncio.CancelledError:
                await self.aclose()
                raise
        return self._events.pop(0)

    async def aclose(self) -> None:
        """Cancel the request, if it has no result yet, and end the iteration."""
        self._is_over, self._events = True, []
        self._future.cancel()

    async def __aenter__(self) -> ServedStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._future.cancel()
