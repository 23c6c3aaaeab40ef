"""Streams that nobody has read to their end when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Generator
from typing import Any

_live: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


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
