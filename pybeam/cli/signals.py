"""The effect of signals: before the work begins the process leaves, later the work ends in good order."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from pybeam.platforms.system import ENDING

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


# whether this process does nothing but run one command
_is_ours = False


class Ended(KeyboardInterrupt):
    """The process was told to end. `exit_code` is what a shell reports for the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def own_process() -> None:
    """Say that this process does nothing but run one command."""
    global _is_ours
    _is_ours = True


def leave_at_once() -> None:
    """From now on the process leaves without a word, until the work begins.

    Modules that are being loaded may turn an exception into another one, or print it. A process that is
    not ours, such as a notebook, stays as it is.
    """
    if _is_ours:
        for number in _untouched():
            signal.signal(number, _leave)


def _raise(ended: Ended) -> NoReturn:
    raise ended


@contextlib.contextmanager
def ending_in_order(leave: Callable[[Ended], None] = _raise) -> Iterator[None]:
    """In this block these signals raise `Ended`. One that is ignored stays ignored, as `nohup` wants.

    `leave` is told in place of that: in an event loop an exception would come anywhere.
    """

    def end(number: int, frame: FrameType | None) -> None:
        leave(Ended(number))

    replaced = {number: signal.signal(number, end) for number in _untouched()}
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _untouched() -> list[int]:
    """Return the signals that nobody else handles or ignores."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in ENDING if signal.getsignal(number) in (*_DEFAULTS, _leave)]


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)
