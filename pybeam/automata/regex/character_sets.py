"""Sets of characters, as `re` has them, and the classes of characters that several sets tell apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

NUM_CHARACTERS = 0x110000
# halves of pairs, which no text in UTF-8 has
SURROGATES = slice(0xD800, 0xE000)

CharacterSet = tuple[tuple[int, int], ...]  # ranges of code points that ascend, the ends exclusive


@cache
def _all_characters() -> str:
    return np.arange(NUM_CHARACTERS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@lru_cache(maxsize=1000)
def characters_of(source: str, flags: int) -> CharacterSet:
    """Return the characters that a pattern of one character matches, found by `re` itself."""
    runs = re.compile(f"(?:{source})+", flags)
    return tuple(found.span() for found in runs.finditer(_all_characters()))


def classes_of(sets: Sequence[CharacterSet]) -> tuple[np.ndarray, list[list[int]]]:
    """Divide all characters into classes, so that every set is a union of classes.

    Returns:
        int32 of every character, its class, from 1 on; 0: it is in no set; and the classes of each set.
    """
    edges = {edge for ranges in sets for span in ranges for edge in span}
    borders = np.array(sorted(edges | {0, NUM_CHARACTERS}))
    is_in = np.zeros((len(borders) - 1, len(sets)), dtype=bool)
    for i, ranges in enumerate(sets):
        for begin, end in np.searchsorted(borders, np.array(ranges, dtype=np.int64).reshape(-1, 2)):
            is_in[begin:end, i] = True
    kinds, kind = alike(is_in)
    is_inside = kinds.any(1)
    number = np.where(is_inside, np.cumsum(is_inside), 0)
    of_character = np.repeat(number[kind], np.diff(borders)).astype(np.int32)
    of_character[SURROGATES] = 0
    return of_character, [number[kinds[:, i]].tolist() for i in range(len(sets))]


def alike(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different rows, and which of them each row is."""
    data, width = rows.tobytes(), rows.shape[1] * rows.itemsize
    if not width:
        return rows[:1], np.zeros(len(rows), dtype=np.int64)
    numbers: dict[bytes, int] = {}
    found = [
        numbers.setdefault(data[i : i + width], len(numbers)) for i in range(0, len(data), width)
    ]
    different = np.frombuffer(b"".join(numbers), dtype=rows.dtype).reshape(-1, rows.shape[1])
    return different, np.array(found)
