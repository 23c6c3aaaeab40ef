"""Pruning: rules by which candidates leave the beam early. They are data for `pybeam.ops.select`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from pybeam.arguments import ArgumentError, flag, real

SMALLEST = 2.0**-126  # the smallest normal float32


@dataclass(frozen=True)
class Pruning:
    """The rules of Freitag and Al-Onaizan 2017; None or ``math.inf`` switches a rule off.

    Args:
        threshold: absolute, in nats: drop a candidate if ``score <= best - threshold``.
        max_candidates: at most this many candidates continue the same row.
        relative_threshold: a ratio of probabilities in (0, 1): drop if
            ``score <= best + log(relative_threshold)``.
        local_threshold: a ratio in (0, 1) on the last token alone: drop if
            ``log_prob <= max(log_prob) + log(local_threshold)``.
        keep_ties: a candidate that is exactly at a threshold stays, as in Yang et al. 2020: ``<`` in
            place of each ``<=``.

    Raises:
        ValueError, TypeError: a value is out of range or no number.
    """

    threshold: float | None = None
    max_candidates: float | None = None
    relative_threshold: float | None = None
    local_threshold: float | None = None
    keep_ties: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "keep_ties":
                flag(field.name, value)
            elif value is not None:
                real(field.name, value, "a number or None")
        if self.threshold is not None and not self.threshold > 0:
            raise ArgumentError(
                "threshold",
                f"must be positive (nats below the best), but is {self.threshold}; leave it out to "
                "switch it off",
            )
        if self.max_candidates is not None and not (
            self.max_candidates == math.inf
            or (self.max_candidates >= 1 and self.max_candidates == int(self.max_candidates))
        ):
            raise ArgumentError(
                "max_candidates",
                f"must be a whole number >= 1, but is {self.max_candidates}; leave it out to switch it off",
            )
        for name in ("relative_threshold", "local_threshold"):
            value = getattr(self, name)
            if value is not None and value != math.inf and not 0 < value < 1:
                raise ArgumentError(
                    name,
                    f"must be a ratio of probabilities between 0 and 1, but is {value}; leave it out to "
                    "switch it off",
                )

    @property
    def margin(self) -> float:
        """A candidate is dropped so many nats below the best one. This joins both thresholds on scores.

        It is negative if ties are kept, as `pybeam.ops.select` takes it.
        """
        absolute = math.inf if self.threshold is None else self.threshold
        return self._signed(min(absolute, _margin(self.relative_threshold)))

    @property
    def local_margin(self) -> float:
        """A candidate is dropped if its last log-prob is so many nats below the best one; signed, too."""
        return self._signed(_margin(self.local_threshold))

    def _signed(self, margin: float) -> float:
        # a smaller one might become a zero, which has no sign for kernels
        return -max(margin, SMALLEST) if self.keep_ties and margin < math.inf else margin


def _margin(ratio: float | None) -> float:
    return math.inf if ratio is None or ratio == math.inf else -math.log(ratio)
