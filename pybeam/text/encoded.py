"""Source ids that know how their hypotheses begin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Encoded(list[int]):
    """The source ids of a text, and the tokens that every hypothesis of it begins with.

    `Tokenizer.encode` returns it where the files or `target_lang` ask for such tokens. It is a list like any
    other. Parts of it keep the prefix, and so do longer lists that begin with it.

    Args:
        ids: the source ids.
        prefix: what `pybeam.Request.prefix` is if the request has none of its own.
    """

    def __init__(self, ids: Iterable[int] = (), prefix: Sequence[int] = ()) -> None:
        super().__init__(ids)
        self.prefix = tuple(prefix)

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return Encoded(found, self.prefix) if isinstance(place, slice) else found

    def __add__(self, other: Any) -> Any:
        return Encoded(super().__add__(other), self.prefix)
