"""What is asked of numbers and token ids that callers give, and how others are refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
from torch import Tensor

MAX_EOS = 8


def number(name: str, value: Any, least: float, below: float = math.inf) -> None:
    """Raises TypeError or ValueError unless ``least < value < below``."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be a number, but is {value!r}")
    if not least < value < below:
        end = f" and less than {below:g}" if below < math.inf else ""
        raise ValueError(f"`{name}` must be finite, greater than {least:g}{end}, but is {value}")


def whole(name: str, value: Any, least: int, most: int | None = None, *, remedy: str = "") -> None:
    """Raises TypeError or ValueError unless the value is an int from `least` to `most`.

    `remedy` is what the message ends with.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` must be an int, but is {value!r}")
    if value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        remedy = remedy and f"; {remedy}"
        raise ValueError(f"`{name}` must be {bounds}, but is {value}{remedy}")


def ids(name: str, values: Any) -> tuple[int, ...]:
    """Token ids as a tuple of ints; raises TypeError or ValueError if they are none."""
    values = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"`{name}` must be a list of token ids, but is {values!r}")
    values = tuple(values)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"`{name}` must hold token ids, which are ints, but holds {value!r}")
        if not 0 <= value < 2**31:
            raise ValueError(f"`{name}` must hold token ids from 0 to 2**31 - 1, but holds {value}")
    return tuple(map(int, values))


def eos_ids(given: Any, vocab_size: int = 2**31) -> tuple[int, ...]:
    """The tokens that end a hypothesis, each once, of one id or several."""
    is_many = isinstance(given, Iterable) and not isinstance(given, str)
    found = tuple(dict.fromkeys(ids("eos_id", given if is_many else [given])))
    if not 1 <= len(found) <= MAX_EOS:
        raise ValueError(
            f"`eos_id` must be one token id or up to {MAX_EOS}, but is {list(found)}; say which count"
        )
    if max(found) >= vocab_size:
        raise ValueError(f"`eos_id` must be 0 to {vocab_size - 1}, but is {max(found)}")
    return found


def at_most(name: str, value: int, limit_name: str, limit: int, remedy: str) -> None:
    """Raises ValueError if option `name` has a `value` above that of `limit_name`, which is `limit`.

    `remedy` is what the message ends with. Raises TypeError if one of them is no int.
    """
    for what, number in ((f"`{name}`", value), (limit_name, limit)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{what} must be an int, but is {number!r}")
    if value > limit:
        raise ValueError(
            f"`{name}` must be at most {limit_name} = {limit}, but is {value}; {remedy}"
        )


def needs(name: str, given: object, other: str, value: object) -> None:
    """Raises ValueError if option `name` is `given`, but `other`, whose `value` it needs, is None."""
    if given and value is None:
        raise ValueError(f"`{name}` needs `{other}`, which is not given")
