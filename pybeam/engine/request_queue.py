"""Requests that arrive while others are decoded."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

import numpy as np

from pybeam.engine.arrivals import Arrivals
from pybeam.engine.streaming import at_rest, end_with_program

T = TypeVar("T")


class RequestQueue(Arrivals):
    """Requests that come one by one, for servers that use `Decoder.stream`.

    Any thread may `put`. Whenever the schedule admits sources, the stream takes the requests that have
    arrived, the longest first. It never waits for more while something is being decoded. With nothing to
    decode it sleeps until a request comes. It ends when the queue is closed and everything has been decoded.
    A queue belongs to its process: a copy that `os.fork` made takes and gives nothing, and says so::

        queue = pybeam.RequestQueue()
        threading.Thread(target=serve, args=[queue]).start()  # puts requests, closes at the end
        for result in decoder.stream(queue):
            answer(result.index, result.hypotheses)
    """

    # an attribute, since a stream may be closed when the program ends and modules are empty already
    _getpid = staticmethod(os.getpid)

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Any]] = deque()
        self.has_news: np.ndarray
        # nobody must leave
        self.has_news, self.must_leave = np.zeros((2, 1), dtype=np.bool_)
        self._num_put = 0
        self._is_closed = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"{type(self).__name__}({state}, {len(self._waiting)} of {self._num_put} wait)"

    def put(self, request: Any) -> int:
        """Add a request, a source or a `Request`. Returns its future `Result.index`.

        Raises:
            ValueError: the queue is closed.
            RuntimeError: the queue is a copy that `os.fork` made.
        """
        self._check_process()
        with self._changed:
            if self._is_closed:
                raise ValueError("this queue was closed, so it takes no requests; open a new one")
            index = self._num_put
            self._num_put += 1
            self._waiting.append((index, request))
            self.has_news[0] = True
            self._changed.notify()
        return index

    def close(self) -> None:
        """Close the queue: no more requests will come. Closing it again, or a copy, changes nothing."""
        if self._is_copy:
            return  # a lock may be held for ever
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        """Whether no more requests will come."""
        return self._is_closed

    def next(self, may_wait: bool) -> tuple[int, Any] | None:
        """Take the oldest request, with its index. The stream calls this.

        Returns None if no request has arrived, or, with `may_wait`, if the queue is closed and none will
        arrive. Raises RuntimeError as `put`.
        """
        self._check_process()
        with at_rest(may_wait), self._changed:
            while may_wait and not self._waiting and not self._is_closed:
                self._changed.wait()
            arrived = self._waiting.popleft() if self._waiting else None
            self.has_news[0] = bool(self._waiting)
        if arrived is not None:
            end_with_program()
        return arrived

    @property
    def _is_copy(self) -> bool:
        return self._pid != self._getpid()

    def _check_process(self) -> None:
        if self._is_copy:
            raise RuntimeError(
                f"this queue belongs to process {self._pid}, and nobody there sees a copy that os.fork made; "
                "open a queue in this process"
            )


class ReadAhead(RequestQueue):
    """Read the requests of an iterable in a thread of its own, at most `window` ahead of the stream.

    A slow iterable then stalls nothing: the stream decodes the requests that have arrived. If the iterable
    raises, earlier requests are decoded first.
    """

    def __init__(self, requests: Iterable[Any], window: int) -> None:
        super().__init__()
        self._room = threading.Semaphore(window)
        self._error: BaseException | None = None
        # a daemon thread, because an iterable that never yields again must not keep the program alive
        self._thread = threading.Thread(target=self._read, args=[iter(requests)], daemon=True)
        self._has_started = False

    def next(self, may_wait: bool) -> tuple[int, Any] | None:
        if self._is_copy:
            raise RuntimeError(
                f"this stream reads its requests in a thread of process {self._pid}, which a copy that "
                "os.fork made does not have; start a stream in this process"
            )
        if not self._has_started:
            self._has_started = True
            self._thread.start()
        arrived = super().next(may_wait)
        if arrived is not None:
            self._room.release()
        elif may_wait and self._error is not None:
            raise self._error
        return arrived

    def stop(self) -> None:
        """Stop reading behind the iterable's present request."""
        if self._is_copy:
            return  # nobody reads
        self.close()
        self._room.release()

    def _read(self, requests: Iterator[Any]) -> None:
        try:
            while True:
                self._room.acquire()
                if self.is_closed:
                    break
                self.put(next(requests))
        except StopIteration:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.close()


def arriving(requests: Iterable[Any] | Arrivals, window: int) -> Iterable[Any] | Arrivals:
    """Return the requests for a stream that must not wait: a slow iterable becomes a `ReadAhead`.

    Any iterable without a length may be slow.
    """
    if isinstance(requests, Arrivals):
        return requests
    return requests if isinstance(requests, Sized) else ReadAhead(requests, window)


def until_done(results: Iterator[T], requests: ReadAhead) -> Iterator[T]:
    """Yield these results. When the caller stops asking for them, no more requests are read."""
    try:
        yield from results
    finally:
        requests.stop()
