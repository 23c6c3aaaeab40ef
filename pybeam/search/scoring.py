"""Scoring: from the accumulated log-probability to the final score that ranks hypotheses.

``n`` is the number of generated tokens, EOS included; ``|x|`` the number of source ids given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scoring:
    """``final_score = score / ((offset + n) / scale)**alpha + reward * min(ratio * |x|, n)``.

    Built by `raw`, `power`, `gnmt` and `reward`, each of which is a case of it; without ratio the
    reward counts every token. Kernels take these numbers as data.
    """

    alpha: float = 0.0
    offset: float = 0.0
    scale: float = 1.0
    reward: float = 0.0
    ratio: float | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "offset", "scale", "reward"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise ValueError(f"`{name}` must be a finite number, but is {value}")
        if not self.scale > 0:
            raise ValueError(f"`scale` must be positive, but is {self.scale}")
        if self.offset < 0:
            raise ValueError(f"`offset` must not be negative, but is {self.offset}")
        if self.ratio is not None and not 0 < self.ratio < math.inf:
            raise ValueError(f"`ratio` must be positive and finite, but is {self.ratio}")

    @property
    def is_raw(self) -> bool:
        return self.alpha == 0 and self.reward == 0

    def cap(self, source_length: int) -> float:
        """Tokens beyond which no reward is given."""
        return math.inf if self.ratio is None else self.ratio * source_length

    def final_score(self, score: float, length: int, source_length: int) -> float:
        if self.alpha != 0:
            score = score / ((self.offset + length) / self.scale) ** self.alpha
        if self.reward != 0:
            score = score + self.reward * min(self.cap(source_length), length)
        return score


def raw() -> Scoring:
    """``final_score = score``, the sum of log-probabilities."""
    return Scoring()


def power(alpha: float) -> Scoring:
    """``final_score = score / n**alpha`` (fairseq's lenpen, CTranslate2's length_penalty)."""
    return Scoring(alpha=float(alpha))


def gnmt(alpha: float) -> Scoring:
    """``final_score = score / ((5 + n) / 6)**alpha`` (Wu et al. 2016)."""
    return Scoring(alpha=float(alpha), offset=5.0, scale=6.0)


def reward(r: float, ratio: float | None = None) -> Scoring:
    """``final_score = score + r * min(ratio * |x|, n)``, or ``score + r * n`` without ratio.

    See Huang, Zhao and Ma 2017, equation 4.
    """
    return Scoring(reward=float(r), ratio=None if ratio is None else float(ratio))
