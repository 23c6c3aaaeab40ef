"""Scoring: turn the accumulated log-probability into the final score that ranks hypotheses.

``n`` is the number of generated tokens, EOS included; ``|x|`` the number of source ids given.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from pybeam.arguments import ArgumentError, real

__all__ = ["Scoring", "gnmt", "power", "raw", "reward"]

MAX_ALPHA = 10


@dataclass(frozen=True)
class Scoring:
    """``final_score = score / ((offset + n) / scale)**alpha + reward * min(ratio * |x|, n)``.

    n is the number of generated tokens, EOS included, ``|x|`` that of source ids. `raw`, `power`, `gnmt` and
    `reward` build cases of it. Kernels take these numbers as data.

    With `coverage`, for models that have attention,
    ``coverage * sum over source positions e of log(min(sum over t of attention[t, e], 1))`` is added, t
    running over the generated tokens, EOS included. Positions without any attention are left out. It is
    added when a source is done, and ranks the hypotheses that the search has kept (as many as the beam is
    wide). The search itself and its end do not depend on it. See Wu et al. 2016, equation 14;
    CTranslate2's coverage_penalty.

    Args:
        alpha: how much length counts, -10 to 10; below 0 shorter hypotheses gain.
        offset: tokens added to n, 0 or more.
        scale: tokens by which that is divided, positive.
        reward: nats for every token that is rewarded.
        ratio: target tokens per source token that are rewarded; None: all are.
        coverage: see above.

    Raises:
        ValueError, TypeError: a value is out of range or no number.
    """

    alpha: float = 0.0
    offset: float = 0.0
    scale: float = 1.0
    reward: float = 0.0
    ratio: float | None = None
    coverage: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "offset", "scale", "reward", "ratio", "coverage"):
            value = getattr(self, name)
            if value is None and name == "ratio":
                continue
            real(name, value)
            if name != "ratio" and not math.isfinite(value):
                raise ArgumentError(name, f"must be a finite number, but is {value}")
        if abs(self.alpha) > MAX_ALPHA:
            raise ArgumentError(
                "alpha",
                f"must be between -{MAX_ALPHA} and {MAX_ALPHA}, beyond which final scores of long "
                f"hypotheses overflow, but is {self.alpha}",
            )
        if not self.scale > 0:
            raise ValueError(f"`scale` must be positive, but is {self.scale}")
        if self.offset + self.cut_length_offset < 0:
            raise ValueError(f"`offset` must not be negative, but is {self.offset}")
        if self.ratio is not None and not 0 < self.ratio < math.inf:
            raise ArgumentError("ratio", f"must be positive and finite, but is {self.ratio}")

    @property
    def cut_length_offset(self) -> float:
        """Tokens added to n for a hypothesis that is cut at its limit; not 0 only in `CutScoring`."""
        return 0.0

    @property
    def is_raw(self) -> bool:
        """Whether the final score is the score."""
        return self.alpha == 0 and self.reward == 0 and self.coverage == 0

    def behind(self, num_tokens: int) -> Scoring:
        """Return this scoring with `num_tokens` added to the generated ones.

        Raises ValueError with a reward, because it would reward these tokens in every hypothesis alike.
        """
        if self.reward != 0:
            raise ValueError(
                f"`reward` must be 0 where a prefix counts in the length, but is {self.reward}"
            )
        return dataclasses.replace(self, offset=self.offset + num_tokens)

    def cap(self, source_length: int) -> float:
        """Return how many tokens are rewarded at most, for a source of `source_length` ids."""
        return math.inf if self.ratio is None else self.ratio * source_length

    def final_score(
        self, score: float, length: float, source_length: int, *, has_ended: bool = True
    ) -> float:
        """The final score of a hypothesis of this `score` and `length`.

        Args:
            score: its accumulated log-probability.
            length: its generated tokens, EOS included.
            source_length: ``|x|``.
            has_ended: whether it ended in EOS; False: it was cut at its limit.
        """
        length += 0.0 if has_ended else self.cut_length_offset
        if self.alpha != 0:
            score = score / ((self.offset + length) / self.scale) ** self.alpha
        if self.reward != 0:
            score = score + self.reward * min(self.cap(source_length), length)
        return score


class CutScoring(Scoring):
    """A scoring that counts the EOS which a hypothesis cut at its limit never got.

    It is for searches of other systems. Where EOS itself does not count, `offset` is -1.
    """

    @property
    def cut_length_offset(self) -> float:
        return 1.0


def raw() -> Scoring:
    """``final_score = score``, the sum of log-probabilities."""
    return Scoring()


def power(alpha: float, coverage: float = 0.0) -> Scoring:
    """``final_score = score / n**alpha``, EOS counted (lenpen, length_penalty elsewhere), plus coverage."""
    return Scoring(alpha=alpha, coverage=coverage)


def gnmt(alpha: float, coverage: float = 0.0) -> Scoring:
    """``final_score = score / ((5 + n) / 6)**alpha``, EOS counted in n (Wu et al. 2016), plus coverage."""
    return Scoring(alpha=alpha, offset=5.0, scale=6.0, coverage=coverage)


def reward(r: float, ratio: float | None = None) -> Scoring:
    """``final_score = score + r * min(ratio * |x|, n)``, or ``score + r * n`` without ratio.

    n counts EOS, and ``|x|`` source ids. See Huang, Zhao and Ma 2017, equation 4.
    """
    return Scoring(reward=r, ratio=ratio)
