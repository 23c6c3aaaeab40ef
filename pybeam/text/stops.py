"""`Stops`: strings before which a text ends, while the text grows."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Strings before which a text ends: at the one that is whole first, and of several the longest.

    So the end does not depend on how many characters come at a time.

    Args:
        strings: none of them is empty.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        assert all(strings), "an empty string is everywhere"
        self._strings = tuple(strings)

    def __bool__(self) -> bool:
        return bool(self._strings)

    def cut(self, text: str) -> tuple[str, bool]:
        """Return the text before the stop string that ends it, and whether there is one."""
        found = [
            (place + len(one), place) for one in self._strings if (place := text.find(one)) >= 0
        ]
        return (text[: min(found)[1]], True) if found else (text, False)

    def shown(self, text: str) -> str:
        """Return the beginning of a text that stays, however the text goes on.

        An end that may be the beginning of a stop string is left out.
        """
        text, has_stop = self.cut(text)
        return text if has_stop else text[: len(text) - self._held(text)]

    def _held(self, text: str) -> int:
        """The longest end of the text with which a stop string begins, in characters."""
        most = max((len(one) for one in self._strings), default=1) - 1
        for size in range(min(most, len(text)), 0, -1):
            if any(one.startswith(text[-size:]) for one in self._strings):
                return size
        return 0
