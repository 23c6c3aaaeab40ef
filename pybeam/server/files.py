"""Files that a server has made and keeps for a while, until their owners have fetched them."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

# of all files together
MAX_BYTES = 64 << 20
# time for which a file is kept
SECONDS = 1800.0


class File(NamedTuple):
    """A file by the name that its owner gave it."""

    name: str
    content: bytes


class Files:
    """Files in memory, by keys that nobody guesses. The oldest ones go first.

    Args:
        max_bytes: of all files together.
        seconds: for which a file is kept.
        clock: returns seconds that never go back.
    """

    def __init__(
        self,
        max_bytes: int = MAX_BYTES,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes, self._seconds, self._clock = max_bytes, seconds, clock
        self._files: OrderedDict[str, tuple[float, File]] = OrderedDict()
        self._size = 0

    def keep(self, name: str, content: bytes) -> str:
        """Keep a file, and return its key."""
        key = secrets.token_urlsafe(24)
        self._files[key] = self._clock() + self._seconds, File(name, content)
        self._size += len(content)
        self._drop()
        return key

    def get(self, key: str) -> File | None:
        """Return a file; None: it is gone."""
        self._drop()
        found = self._files.get(key)
        return None if found is None else found[1]

    def _drop(self) -> None:
        now = self._clock()
        while self._files:
            end, file = next(iter(self._files.values()))
            if end > now and self._size <= self._max_bytes:
                return
            self._files.popitem(last=False)
            self._size -= len(file.content)
