"""How long a hypothesis may become, and what a forced prefix has to do with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real


@dataclass(frozen=True)
class SourceLimit:
    """A `max_length` that follows the source: ``floor(ratio * |x| + constant)``, at least 1.

    Never more than the model's positions. fairseq's max_len_a and max_len_b; FireRedASR's limit is |x|.
    """

    ratio: float
    constant: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ratio", "constant"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"`{name}` must be a number, but is {value!r}")
            if not 0 <= value < math.inf:
                raise ValueError(f"`{name}` must be finite and not negative, but is {value}")

    def tokens(self, source_length: int) -> int:
        return max(1, math.floor(self.ratio * source_length + self.constant))


@dataclass(frozen=True)
class PrefixRule:
    """What `Request.prefix` counts for; by default for nothing.

    Args:
        is_scored: its tokens have the log-probs that the model gives them, and not 0; they count in n. One
            that cannot follow (log-prob -inf) has 0. What is found behind the prefix does not change.
        in_length: they count in n.
        in_limits: they count in `min_length` and `max_length`.
        leading_eos: right behind a prefix, EOS finishes only as the best candidate; if it is another of
            the best `width`, it only takes a place from the next beam (CTranslate2).
    """

    is_scored: bool = False
    in_length: bool = False
    in_limits: bool = False
    leading_eos: bool = False

    def __post_init__(self) -> None:
        if self.is_scored and not self.in_length:
            raise ValueError("`is_scored` needs `in_length`: what is scored counts in n")


FREE = PrefixRule()
