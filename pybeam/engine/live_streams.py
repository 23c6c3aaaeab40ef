"""Streams that nobody has read to their end when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_live: weakref.WeakSet[Any] = weakref.WeakSet()


def closed_at_exit(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Close the generators that this function makes when the program ends, while torch is still there."""

    @functools.wraps(function)
    def remembered(*args: P.args, **options: P.kwargs) -> Iterator[T]:
        stream = function(*args, **options)
        _live.add(stream)
        return stream

    return remembered


@atexit.register
def _close_all() -> None:
    for stream in list(_live):
        # another thread may be reading it
        with contextlib.suppress(ValueError):
            stream.close()
