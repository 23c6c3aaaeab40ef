"""Streams: the GPU that they use, and those that nobody has read to their end when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import functools
import weakref
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

import torch

from pybeam.backends.inference import InferenceMode

P = ParamSpec("P")
T = TypeVar("T")
Stream = Generator[T, None, None]

_live: weakref.WeakSet[Any] = weakref.WeakSet()


def on_device(stream: Stream[T], device: torch.device) -> Stream[T]:
    """Yield what the stream does. While it works, its GPU is torch's current one, where Triton launches."""
    if device.type != "cuda":
        yield from stream
        return
    try:
        while True:
            with torch.cuda.device(device):
                item = next(stream, None)
            if item is None:
                return
            yield item
    finally:
        with torch.cuda.device(device):
            stream.close()


def one_by_one(function: Callable[P, Stream[list[T]]]) -> Callable[P, Stream[T]]:
    """Yield one by one what this function yields in lists. It works within torch's inference mode.

    The mode is entered for every list, which would cost more than all else if it were for every result.
    """

    @functools.wraps(function)
    def each(*args: P.args, **options: P.kwargs) -> Stream[T]:
        lists = function(*args, **options)
        try:
            while True:
                with InferenceMode(True):
                    some = next(lists, None)
                if some is None:
                    return
                yield from some
        finally:
            with InferenceMode(True):
                lists.close()

    return each


def closed_at_exit(function: Callable[P, Stream[T]]) -> Callable[P, Stream[T]]:
    """Close the generators that this function makes when the program ends, while torch is still there."""

    @functools.wraps(function)
    def remembered(*args: P.args, **options: P.kwargs) -> Stream[T]:
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
