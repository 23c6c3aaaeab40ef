"""How long a hypothesis may become, and whether a forced prefix counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

__all__ = ["PrefixRule", "SourceLimit"]

# what arrays on a device hold
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class SourceLimit:
    """A `max_length` that follows the source: ``floor(ratio * |x| + constant)``, at least 1.

    It is never more than the model's positions, nor than 2**31 - 1. fairseq's max_len_a and max_len_b are
    such a limit, and FireRedASR's is ``|x|``.

    Args:
        ratio: tokens per source id, 0 or more.
        constant: tokens beside them, 0 or more.

    Raises:
        ValueError, TypeError: a value is negative, not finite or no number.
    """

    ratio: float
    constant: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ratio", "constant"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"`{name}` must be a number, but is {value!r}")
            try:
                found = float(value)
            except OverflowError:
                found = math.inf
            if not 0 <= found < math.inf:
                raise ValueError(f"`{name}` must be finite and not negative, but is {value}")

    def tokens(self, source_length: int) -> int:
        """The limit for a source of `source_length` ids."""
        limit = min(self.ratio * source_length + self.constant, LARGEST)
        return max(1, math.floor(limit))


@dataclass(frozen=True)
class PrefixRule:
    """Where `Request.prefix` counts; by default nowhere.

    Args:
        is_scored: whether its tokens have the log-probs that the model gives them, and not 0. They then
            count in n too. One that cannot follow (log-prob -inf) has 0. The tokens behind the prefix
            are the same either way.
        in_length: whether they count in n.
        in_limits: whether they count in `min_length` and `max_length`.

    Raises:
        ValueError: `is_scored` without `in_length`.
    """

    is_scored: bool = False
    in_length: bool = False
    in_limits: bool = False

    def __post_init__(self) -> None:
        if self.is_scored and not self.in_length:
            raise ValueError("`is_scored` needs `in_length`: what is scored counts in n")

    @property
    def leading_eos(self) -> bool:
        """Whether EOS right behind a prefix must be the best candidate; only in `pybeam.compat`."""
        return False

    @property
    def of_default(self) -> PrefixRule:
        """The rule for a prefix that is not the request's: the source's language, or a forced first token.

        It may differ in `in_length` and `in_limits`, and does only in `pybeam.compat`.
        """
        return self


FREE = PrefixRule()
