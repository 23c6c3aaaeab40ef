"""What the host reads of the device's state: a report after each step, and what sources have found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pybeam.backends.arrays import NUM_REPORTED


class Report(NamedTuple):
    """What the host hears of some slots [A] after a step, as arrays on the host."""

    num_free_pages: int
    reason: np.ndarray  # [A], into STOP_REASONS
    num_rows: np.ndarray  # [A]
    depth: np.ndarray  # [A], tokens after the start token
    num_finished: np.ndarray  # [A] hypotheses
    steps: np.ndarray  # [A]
    expansions: np.ndarray  # [A]
    num_pages: np.ndarray  # [A], pages that each source holds

    def of(self, index: Sequence[int]) -> Report:
        """The part on the slots at these places."""
        return Report(self.num_free_pages, *(column[index] for column in self[1:]))

    @classmethod
    def parse(cls, numbers: np.ndarray, num_slots: int) -> Report:
        """From what `BeamState.report` gave, for the first so many of its slots."""
        lines = numbers[1:].reshape(-1, NUM_REPORTED + 1)
        return cls(int(numbers[0]), *lines[:num_slots].T)


class Found(NamedTuple):
    """A finished hypothesis."""

    tokens: list[int]  # without the start token
    length: int  # generated tokens, EOS included
    score: float
    eos_id: int | None  # the token that ended it
    log_probs: list[float] | None

    @classmethod
    def parse(cls, numbers: np.ndarray, capacity: int) -> list[Found]:
        """From what `BeamState.finished` gave for paths of that capacity."""
        floats = numbers[:, 4:].view(np.float32)
        scores, of_eos = floats[:, 0].tolist(), floats[:, 1].tolist()
        lines = zip(numbers[:, :4].tolist(), numbers[:, 7 : 7 + capacity].tolist(), strict=True)
        log_probs = floats[:, 3 + capacity :].tolist()
        found = []
        for i, ((_, length, eos, size), path) in enumerate(lines):
            has_ended = eos >= 0
            values = log_probs[i][1:size] + [of_eos[i]] * has_ended if log_probs[i] else None
            eos_id = eos if has_ended else None
            found.append(cls(path[1:size], length, scores[i], eos_id, values))
        return found
