"""Check numbers, token ids and lists that callers give. Errors say what was expected and what was found."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

import numpy as np
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

MAX_EOS = 8
# of an array on a device, and of any number that C++ is given
LARGEST_INT32, LARGEST = 2**31 - 1, 2**63 - 1
_WIDTH = ("width", "search=pybeam.fixed_beam(5)", "algorithm=pybeam.fixed_beam(5)")
# their names, and our arguments that do the same: the first that a function has is meant
PEERS: dict[str, tuple[str, ...]] = {
    "batch_size max_batch_size": ("schedule=pybeam.Fifo(64)",),
    "beam_size num_beams beam beam_width": _WIDTH,
    "compute_type torch_dtype precision": ("dtype",),
    "device_map": ("device",),
    "do_sample": ("search=pybeam.sample()", "algorithm=pybeam.sample()"),
    "early_stopping": ("stop",),
    "length_penalty lenpen len_pen alpha": ("scoring=pybeam.scoring.power(1.0)",),
    "max_new_tokens max_decoding_length max_len max_len_b": ("max_length",),
    "min_new_tokens min_decoding_length min_len": ("min_length",),
    "no_repeat_ngram_size": ("processors=[pybeam.processors.no_repeat_ngram(3)]",),
    "num_hypotheses num_return_sequences": ("n_best", "num"),
    "repetition_penalty": ("processors=[pybeam.processors.repetition_penalty(1.2)]",),
    "sampling_temperature": ("temperature",),
    "sampling_topk": ("top_k",),
    "sampling_topp": ("top_p",),
    "src_lang source_language": ("source_lang", "source"),
    "tgt_lang target_language target_prefix": ("target_lang", "target"),
}


class ArgumentError(ValueError):
    """The value of an argument is wrong.

    A caller whose users know the argument by another name, such as the command line, writes that name
    before `problem`.

    Attributes:
        name: the argument.
        problem: what was expected, what was found, and the remedy.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"`{self.name}` {self.problem}"


def names_checked(function: Callable[P, T], known: Sequence[str] | None = None) -> Callable[P, T]:
    """A decorator: a call with an argument that does not exist raises TypeError with the nearest one.

    `known` are its arguments, if its signature does not say so.
    """
    names = known or [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for given in kwargs:
            if given not in names:
                called = function.__qualname__.removesuffix(".__init__")
                near = _meant_by(given, names) or get_close_matches(given, names, n=1)
                hint = f" Did you mean `{near[0]}`?" if near else ""
                listed = ", ".join(names)
                raise TypeError(f"`{given}` is no option of {called}().{hint} There are: {listed}")
        return function(*args, **kwargs)

    return checked


def _meant_by(name: str, known: Sequence[str]) -> list[str]:
    """Return our arguments for another system's, among those that a function has."""
    return [
        ours
        for theirs, all_of_ours in PEERS.items()
        for ours in all_of_ours
        if name in theirs.split() and ours.partition("=")[0] in known
    ]


def real(name: str, value: Any, expected: str = "a number") -> None:
    """Raise TypeError unless the value is a number, and ValueError if it is an integer beyond every float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`{name}` must be {expected}, but is {value!r}")
    try:
        float(value)
    except OverflowError as error:
        problem = f"must be finite, but is an integer beyond {sys.float_info.max:.1e}"
        raise ArgumentError(name, problem) from error


def flag(name: str, value: Any) -> None:
    """Raise TypeError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False, but is {value!r}")


def number(name: str, value: Any, least: float, below: float = math.inf) -> None:
    """Raise TypeError or ValueError unless ``least < value < below``."""
    real(name, value)
    if not least < value < below:
        end = f" and less than {below:g}" if below < math.inf else ""
        raise ArgumentError(name, f"must be finite, greater than {least:g}{end}, but is {value}")


def whole(name: str, value: Any, least: int, most: int | None = None, *, remedy: str = "") -> None:
    """Raise TypeError or ValueError unless the value is an int from `least` to `most`.

    `remedy` ends the message.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` must be an int, but is {value!r}")
    limit = LARGEST if most is None else most
    if value < least or value > limit:
        bounds = f"{least} to {limit}"
        # nobody comes near to what an integer can be
        if most in (None, LARGEST_INT32):
            bounds = f"at least {least}" if value < least else f"at most {limit}"
        remedy = remedy and f"; {remedy}"
        raise ArgumentError(name, f"must be {bounds}, but is {value}{remedy}")


def ids(name: str, values: Any) -> tuple[int, ...]:
    """Return token ids as a tuple of ints. Raises TypeError or ValueError if they are not token ids."""
    values = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"`{name}` must be a list of token ids, but is {values!r}")
    values = tuple(values)
    for value in values:
        # most are, and asking `Integral` takes ten times as long
        is_int = type(value) is int
        if not is_int and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise TypeError(f"`{name}` must hold token ids, which are ints, but holds {value!r}")
        if not 0 <= int(value) < 2**31:
            raise ArgumentError(name, f"must hold token ids from 0 to 2**31 - 1, but holds {value}")
    return tuple(map(int, values))


def check_list(name: str, values: object, check: Callable[[Any], object] | None = None) -> None:
    """Raise TypeError unless `values` can be a list of sequences: neither one sequence nor a text.

    `check` raises for what is no source of a model. Where it accepts a number, numbers are sources.
    """
    if not isinstance(values, Iterable):
        raise TypeError(
            f"`{name}` must be a list or another iterable, but is a {type(values).__name__}; put a single "
            "one into a list too"
        )
    if isinstance(values, str):
        raise TypeError(
            f"`{name}` must be a list with the token ids of each, but is a text; encode it: "
            f"[tokenizer.encode({values[:20]!r})]"
        )
    if isinstance(values, Tensor | np.ndarray):
        numbers = values.tolist() if values.ndim == 1 else []
    else:
        numbers = values if isinstance(values, list | tuple) else []
    first = numbers[0] if len(numbers) else None
    if isinstance(first, bool) or not isinstance(first, Real):
        return
    if check is not None and _passes(check, first):
        return
    raise TypeError(
        f"`{name}` must be a list with the token ids of each, but holds ids itself, beginning with "
        f"{first}; put a single list of ids into a list too: [[{first}, …]]"
    )


def _passes(check: Callable[[Any], object], value: object) -> bool:
    try:
        check(value)
    except (TypeError, ValueError):
        return False
    return True


def eos_ids(given: Any, vocab_size: int = 2**31) -> tuple[int, ...]:
    """Return the tokens that end a hypothesis, without repetitions; `given` is one id or several."""
    is_many = isinstance(given, Iterable) and not isinstance(given, str)
    found = tuple(dict.fromkeys(ids("eos_id", given if is_many else [given])))
    if not 1 <= len(found) <= MAX_EOS:
        problem = f"must be one token id or up to {MAX_EOS}, but is {list(found)}; say which count"
        raise ArgumentError("eos_id", problem)
    if max(found) >= vocab_size:
        raise ArgumentError("eos_id", f"must be 0 to {vocab_size - 1}, but is {max(found)}")
    return found


def at_most(name: str, value: int, limit_name: str, limit: int, remedy: str) -> None:
    """Raise ValueError if option `name` has a `value` above `limit`, the value of `limit_name`.

    `remedy` ends the message. Raises TypeError if one of the two is no int.
    """
    for what, number in ((f"`{name}`", value), (limit_name, limit)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{what} must be an int, but is {number!r}")
    if value > limit:
        problem = f"must be at most {limit_name} = {limit}, but is {value}; {remedy}"
        raise ArgumentError(name, problem)


def needs(name: str, given: object, other: str, value: object) -> None:
    """Raise ValueError if option `name` is `given`, but the `value` of `other`, which it needs, is None."""
    if given and value is None:
        raise ArgumentError(name, f"needs `{other}`, which is not given")


def some(names: Iterable[str]) -> str:
    """Name the first five, and say how many there are if there are more."""
    names = list(names)
    return ", ".join(names[:5]) + (f", … {len(names)} in all" if len(names) > 5 else "")
