"""`Kept`: automata that are remembered, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock

from pybeam.automata.automaton import Automaton


class Kept:
    """The automata that were asked for last. Any number of threads may share it.

    Args:
        most: so many automata at most.
        most_bytes: of all of them together; the last one stays whatever its size.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        # the last ones used are last
        self._kept: OrderedDict[Hashable, Automaton] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Automaton]) -> Automaton:
        """Return the automaton of this key, the same object while it is remembered."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            # another thread may have been faster
            found = self._kept.setdefault(key, made)
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and (
                len(self._kept) > self._most or self.num_bytes > self._most_bytes
            ):
                self._kept.popitem(last=False)
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of all that are remembered."""
        return sum(one.num_bytes for one in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)
