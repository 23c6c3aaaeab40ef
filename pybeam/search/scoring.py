"""Scoring: from the accumulated log-probability to the final score that ranks hypotheses.

``n`` is the number of generated tokens, EOS included; ``|x|`` the number of source ids given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scoring:
    """``final_score = score``: no correction for length."""

    @property
    def is_raw(self) -> bool:
        return type(self) is Scoring

    def final_score(self, score: float, length: int, source_length: int) -> float:
        return score


@dataclass(frozen=True)
class Power(Scoring):
    alpha: float

    def final_score(self, score: float, length: int, source_length: int) -> float:
        return score / length**self.alpha


@dataclass(frozen=True)
class Gnmt(Scoring):
    alpha: float

    def final_score(self, score: float, length: int, source_length: int) -> float:
        return score / ((5 + length) / 6) ** self.alpha


@dataclass(frozen=True)
class Reward(Scoring):
    reward: float
    ratio: float | None

    def final_score(self, score: float, length: int, source_length: int) -> float:
        counted = length if self.ratio is None else min(self.ratio * source_length, length)
        return score + self.reward * counted


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, but is {value}")
    return float(value)


def raw() -> Scoring:
    """``final_score = score``, the sum of log-probabilities."""
    return Scoring()


def power(alpha: float) -> Scoring:
    """``final_score = score / n**alpha`` (fairseq's lenpen, CTranslate2's length_penalty)."""
    return Power(_finite("alpha", alpha))


def gnmt(alpha: float) -> Scoring:
    """``final_score = score / ((5 + n) / 6)**alpha`` (Wu et al. 2016)."""
    return Gnmt(_finite("alpha", alpha))


def reward(r: float, ratio: float | None = None) -> Scoring:
    """``final_score = score + r * min(ratio * |x|, n)``, or ``score + r * n`` without ratio.

    See Huang, Zhao and Ma 2017, equation 4.
    """
    if ratio is not None and not ratio > 0:
        raise ValueError(f"`ratio` must be positive, but is {ratio}")
    return Reward(_finite("r", r), ratio if ratio is None else _finite("ratio", ratio))
