"""`Stream`: what a stream of requests gives, one by one, and the state of torch in which it works."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

import torch

from pybeam.backends.inference import InferenceMode
from pybeam.backends.memory import on_host
from pybeam.engine.stats import Stats

T = TypeVar("T")

_live: weakref.WeakSet[Stream[Any]] = weakref.WeakSet()
# how long the end of a program waits for a step of another thread
MOST_SECONDS_AT_EXIT = 5.0
# set when the program ends: no thread begins a step
_is_over = threading.Event()


class Stream(Generic[T], Iterator[T]):
    """The items of lists that a generator yields. The generator works only when all earlier items are taken.

    While the generator works, torch is in its inference mode, makes tensors on the host unless a device is
    named, and the stream's GPU is torch's current one, where Triton launches. All this is done for a list and
    not for an item, as it would cost more than the item. Streams that nobody has read to their end are
    closed when the program ends, while torch is still there; generators around them, which Python ends later,
    close them again.

    Args:
        lists: makes the items.
        device: where the generator works.
        stats: counts the seconds of that work.
    """

    def __init__(
        self, lists: Generator[list[T]], device: torch.device, stats: Stats | None = None
    ) -> None:
        self._lists, self._stats = lists, Stats() if stats is None else stats
        self._device = device if device.type == "cuda" else None
        self._items: deque[T] = deque()
        self._is_closed = self._is_ending = False
        # the thread that works, unless it waits for requests
        self._at_work: int | None = None
        _live.add(self)

    def __next__(self) -> T:
        while not self._items:
            some = self._work()
            if some is None:
                raise StopIteration
            self._items.extend(some)
        return self._items.popleft()

    def close(self) -> None:
        """Give up what has not been taken. A second call does nothing."""
        if self._is_closed:
            return
        self._items.clear()
        with self._on_device(), InferenceMode(True):
            self._lists.close()
        self._is_closed = True

    def _work(self) -> list[T] | None:
        begin = time.perf_counter()
        self._at_work = threading.get_ident()
        try:
            if self._is_ending or _is_over.is_set():
                return None
            with on_host(), self._on_device(), InferenceMode(True):
                return next(self._lists, None)
        finally:
            self._at_work = None
            self._stats.seconds += time.perf_counter() - begin

    def _on_device(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._device is None else torch.cuda.device(self._device)


@contextlib.contextmanager
def at_rest() -> Iterator[None]:
    """Within this, streams that this thread works for wait for requests. No lock may be held around it."""
    thread = threading.get_ident()
    resting = [stream for stream in list(_live) if stream._at_work == thread]
    for stream in resting:
        stream._at_work = None
    try:
        yield
    finally:
        for stream in resting:
            stream._at_work = thread
        if _is_over.is_set():
            for stream in resting:
                stream._at_work = None
            # for ever: the thread is a daemon, as the others have ended before
            threading.Event().wait()


def _close_all() -> None:
    """Close all streams, those of other threads after their present step.

    Python 3.11 to 3.13 end such a thread when it comes back from C++, and the process fails if it is there.
    """
    end = time.monotonic() + MOST_SECONDS_AT_EXIT
    for stream in list(_live):
        if stream._at_work != threading.get_ident():
            stream._is_ending = True
            while stream._at_work is not None and time.monotonic() < end:
                time.sleep(0.001)
        # it may still work, or be this thread's
        with contextlib.suppress(ValueError):
            stream.close()


@atexit.register
def _end() -> None:
    _is_over.set()
    _close_all()
