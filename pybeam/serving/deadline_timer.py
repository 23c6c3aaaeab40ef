"""`DeadlineTimer`: a thread that looks when deadlines pass, and at steps that do not end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable


class DeadlineTimer:
    """A thread that calls a function at the time that it has named, or before if it is asked to.

    Args:
        look: is called; returns when it is to be called again, on the clock. It must not raise.
        clock: seconds that never go back.
    """

    def __init__(self, look: Callable[[], float], clock: Callable[[], float]) -> None:
        self._look, self._clock = look, clock
        self._changed = threading.Condition()
        self._at = -math.inf
        self._is_over = False

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="pybeam deadlines", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def wake_by(self, when: float) -> None:
        """Let the function be called at this time, if it would be called later."""
        with self._changed:
            if when < self._at:
                self._at = when
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_over and (left := self._at - self._clock()) > 0:
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                if self._is_over:
                    return
                self._at = math.inf
            # what comes while it looks rings again
            self.wake_by(self._look())
