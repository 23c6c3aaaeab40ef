"""Streams: the GPU that they use, and those that nobody has read to their end when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Generator
from typing import Any

import torch

_live: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


def on_device(
    stream: Generator[Any, None, None], device: torch.device
) -> Generator[Any, None, None]:
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


def closed_at_exit(stream: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """Return the stream. It is closed when the program ends, while torch is still there to be asked."""
    _live.add(stream)
    return stream


@atexit.register
def _close_all() -> None:
    for stream in list(_live):
        # another thread may be reading it
        with contextlib.suppress(ValueError):
            stream.close()
