"""`Bell`: wakes an event loop for other threads, once for all that has come meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary, ref

T = TypeVar("T")


class Bell:
    """Calls functions in an event loop. Any thread may ask for it.

    To wake a loop costs a call of the system, and the thread that computes must then share Python's lock. An
    engine that hands out several results behind a step wakes the loop once.

    Args:
        loop: in which the functions are called, in the order in which they came.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # bells are kept by their loops, and a bell that held its loop would keep it
        self._loop = ref(loop)
        self._calls: deque[Callable[[], None]] = deque()
        self._is_rung = False

    def call(self, function: Callable[[], None]) -> None:
        """Call this in the loop, soon; in no loop that is closed or gone.

        The loop's exception handler hears of a call that raises.
        """
        self._calls.append(function)
        # `_answer` forgets the ring before it looks for calls, so none stays behind
        if not self._is_rung:
            self._is_rung = True
            loop = self._loop()
            if loop is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._is_rung = False
        while self._calls:
            function = self._calls.popleft()
            try:
                function()
            # the others are those of other callers
            except Exception as error:
                loop = self._loop()
                assert loop is not None, "it runs this"
                problem = "a call that another thread asked for failed"
                loop.call_exception_handler({"message": problem, "exception": error})


_bells: WeakKeyDictionary[asyncio.AbstractEventLoop, Bell] = WeakKeyDictionary()
_lock = threading.Lock()


def own_bell() -> Bell:
    """Return the bell of the loop that runs this task."""
    loop = asyncio.get_running_loop()
    with _lock:
        found = _bells.get(loop)
        if found is None:
            found = _bells[loop] = Bell(loop)
        return found


def awaited(future: Future[T]) -> asyncio.Future[T]:
    """Return what a task can await of a future of other threads, as `asyncio.wrap_future` does.

    No task can be given a StopIteration. It becomes the cause of a RuntimeError.
    To cancel what is returned cancels the future.
    """
    bell, coming = own_bell(), asyncio.get_running_loop().create_future()

    def leave(own: asyncio.Future[T]) -> None:
        if own.cancelled():
            future.cancel()

    coming.add_done_callback(leave)
    # a future keeps its callbacks, and would keep itself with them
    future.add_done_callback(lambda own: bell.call(partial(_copy, own, coming)))
    return coming


def _copy(future: Future[T], coming: asyncio.Future[T]) -> None:
    """Give a task what has become of a future, unless the task wants it no more."""
    if coming.done():
        return
    if future.cancelled():
        coming.cancel()
    elif isinstance(error := future.exception(), StopIteration):
        problem = RuntimeError(f"StopIteration: {error}")
        problem.__cause__ = error
        coming.set_exception(problem)
    elif error is not None:
        coming.set_exception(error)
    else:
        coming.set_result(future.result())
