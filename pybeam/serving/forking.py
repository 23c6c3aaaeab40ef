"""Services in a process that `os.fork` copies: the copy has none of their threads."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from pybeam.platforms.decoding import at_fork


class HasThreads(Protocol):
    """Something whose threads a copy of the process does not have."""

    def after_fork(self) -> None:
        """Note that this is the copy."""


_KNOWN: WeakSet[HasThreads] = WeakSet()


def on_fork(service: HasThreads) -> None:
    """From now on, copies of this process call its `after_fork`."""
    _KNOWN.add(service)


def _tell() -> None:
    for service in list(_KNOWN):
        service.after_fork()


at_fork(_tell)
