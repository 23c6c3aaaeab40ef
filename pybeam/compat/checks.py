"""What recipes refuse, in the words of the options they take."""

from __future__ import annotations


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
