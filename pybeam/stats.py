"""What one decode or stream call did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pybeam.phases import PHASES


@dataclass
class Stats:
    """What one decode or stream call did; the columns of the papers' tables.

    `expansions` counts rows sent through the model; held hypotheses are not.
    """

    sources: int = 0
    steps: int = 0
    expansions: int = 0
    refills: int = 0
    stop_reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    pages: int = 0  # of the key and value pool, which never shrinks

    @property
    def expansions_per_step(self) -> float:
        return self.expansions / self.steps if self.steps else 0.0
