"""`Stream`: what a stream of requests gives, one by one, and the state of torch in which it works."""

from __future__ import annotations

import atexit
import contextlib
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


class Stream(Generic[T], Iterator[T]):
    """The items of lists that a generator yields. The generator works only when all earlier items are taken.

    While the generator works, torch is in its inference mode, makes tensors on the host unless a device is
    named, and the stream's GPU is torch's current one, where Triton launches. All this is done for a list and
    not for an item, as it would cost more than the item. Streams that nobody has read to their end are
    closed when the program ends, while torch is still there.

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
        _live.add(self)

    def __next__(self) -> T:
        while not self._items:
            some = self._work()
            if some is None:
                raise StopIteration
            self._items.extend(some)
        return self._items.popleft()

    def close(self) -> None:
        """Give up what has not been taken."""
        self._items.clear()
        with self._on_device(), InferenceMode(True):
            self._lists.close()

    def _work(self) -> list[T] | None:
        begin = time.perf_counter()
        try:
            with on_host(), self._on_device(), InferenceMode(True):
                return next(self._lists, None)
        finally:
            self._stats.seconds += time.perf_counter() - begin

    def _on_device(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._device is None else torch.cuda.device(self._device)


@atexit.register
def _close_all() -> None:
    for stream in list(_live):
        # another thread may be reading the stream
        with contextlib.suppress(ValueError):
            stream.close()
