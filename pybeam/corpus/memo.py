"""`Memo`: what has been found for a key, and who waits for what is being found."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Asker = TypeVar("Asker")


class Memo(Generic[Key, Value, Asker]):
    """Remember the values of the keys that were used last. Threads may share it.

    Args:
        capacity: so many values are remembered.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._askers: dict[Key, list[Asker]] = {}
        self._changing = threading.Lock()

    def ask(self, key: Key, asker: Asker) -> tuple[Value | None, bool]:
        """Return the value if it is known, and whether the asker is the one to find it.

        With neither, `tell` will name this asker.
        """
        with self._changing:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key], False
            is_first = key not in self._askers
            if is_first:
                self._askers[key] = []
            else:
                self._askers[key].append(asker)
            return None, is_first

    def tell(self, key: Key, value: Value, *, keeps: bool = True) -> list[Asker]:
        """Say what was found; returns those who wait for it. `keeps`: whether to remember it."""
        with self._changing:
            if keeps:
                self._values[key] = value
                if len(self._values) > self._capacity:
                    self._values.popitem(last=False)
            return self._askers.pop(key, [])

    def give_up(self) -> None:
        """Forget all searches: nothing more will be found for those who wait."""
        with self._changing:
            self._askers.clear()
