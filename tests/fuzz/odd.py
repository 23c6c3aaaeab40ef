"""Values that nobody should hand over, and what an error about them may be."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

# as a file of JSON can hold them
JSON: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 127, 4097, 10**6, 2**28, 2**31 - 1, 2**31, 2**63, 2**64, -(2**70),
    0.5, -0.0, 1e308,
    math.nan, math.inf, -math.inf, "", "a", "\0", "\ud800", "é" * 50, "relu", "../config.json",
    "/etc/passwd", [], [[]],
    [None], [0], [2**40], ["a", 1], {}, {"a": {}}, {"type": "x"},
]  # fmt: skip


class Refused(Exception):
    """Raised by objects of the caller's; the library hands it on."""


class Stubborn:
    """An object that refuses whatever it is asked."""

    def __len__(self) -> int:
        raise Refused("no length")

    def __iter__(self):
        raise Refused("no items")

    def __eq__(self, other: object) -> bool:
        raise Refused("no equality")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Stubborn()"


# as a program can hand them over
VALUES: list[Any] = [
    *JSON, 10**400, b"x", (), (1, 2), range(3), {1, 2}, object(), Stubborn(), lambda *_: 0, int,
    torch.tensor(3), torch.tensor([1.5]), torch.zeros(2, 2), torch.tensor([], dtype=torch.long),
    torch.tensor([1, 2], dtype=torch.int8), torch.tensor([[math.nan]]), torch.ones(3, dtype=torch.bool),
]  # fmt: skip


def spoiled(value: Any, chance: random.Random) -> Any:
    """Return a JSON value with something odd in it."""
    if type(value) is int and chance.random() < 0.3:
        return chance.choice([value - 1, value + 1, 2 * value, 1000 * value, -value])
    if not isinstance(value, dict | list) or not value or chance.random() < 0.05:
        return chance.choice(JSON)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        return [*value[:at], spoiled(value[at], chance), *value[at + 1 :]]
    key = chance.choice(list(value))
    changed = {**value, key: spoiled(value[key], chance)}
    if chance.random() < 0.2:
        del changed[key]
    if chance.random() < 0.1:
        changed[chance.choice([*value, "a", ""])] = chance.choice(JSON)
    return changed


def with_other_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return bytes of which some are others, more, or fewer, in a few places or at the end."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        # the beginning of most files says how the rest is read
        at = chance.randrange(min(len(found), chance.choice([8, 100, 2000, 1 << 40])) + 1)
        kind = chance.randint(0, 4)
        if kind == 0:
            found[at : at + 1] = chance.randbytes(1)
        elif kind == 1:
            found[at : at + 4] = chance.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"])
        elif kind == 2:
            found[at:at] = chance.randbytes(chance.randint(1, 9))
        elif kind == 3:
            del found[at : at + chance.randint(1, 9)]
        elif chance.random() < 0.3:
            del found[at:]
    return bytes(found)
