"""`Stream`: what a stream of requests gives, one by one, and the state of torch in which it works."""

from __future__ import annotations

import atexit
import contextlib
import sys
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
# and for the thread to free what the stream held
MOST_SECONDS_TO_FREE = 0.5
# threads that are within a step, and do not wait for requests
_working: set[int] = set()
# threads that begin no step, because the program ends
_held: frozenset[int] = frozenset()


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
        self._is_closed = False
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
        begin, thread = time.perf_counter(), threading.get_ident()
        is_outermost = thread not in _working
        _working.add(thread)
        try:
            end_with_program()
            with on_host(), self._on_device(), InferenceMode(True):
                return next(self._lists, None)
        finally:
            if is_outermost:
                _working.discard(thread)
            self._stats.seconds += time.perf_counter() - begin

    def _on_device(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._device is None else torch.cuda.device(self._device)


@contextlib.contextmanager
def at_rest(may_wait: bool) -> Iterator[None]:
    """Within this, the thread may wait for requests. One that has got a request calls `end_with_program`."""
    thread = threading.get_ident()
    is_at_work = may_wait and thread in _working
    if is_at_work:
        _working.discard(thread)
    try:
        yield
    finally:
        if is_at_work:
            _working.add(thread)


def end_with_program() -> None:
    """Raise SystemExit, which ends a thread without a word, if the program ends."""
    if threading.get_ident() in _held:
        raise SystemExit


@atexit.register
def _end() -> None:
    """Close all streams, behind the present steps of the other threads, which begin no others.

    Python 3.11 to 3.13 end such a thread when it comes back from C++, and the process fails if it is there.
    Threads that later handlers start, and this one, work as ever.
    """
    global _held
    # in a copy that os.fork made, there are no others
    _held = frozenset(sys._current_frames()) - {threading.get_ident()}
    ending, end = _working & _held, time.monotonic() + MOST_SECONDS_AT_EXIT
    while _working & _held and time.monotonic() < end:
        time.sleep(0.001)
    end = min(end, time.monotonic() + MOST_SECONDS_TO_FREE)
    while ending & sys._current_frames().keys() and time.monotonic() < end:
        time.sleep(0.001)
    _close_all()


def _close_all() -> None:
    while _live:
        # another thread may still work, or it may be this thread's
        with contextlib.suppress(ValueError, KeyError):
            _live.pop().close()
