"""Numbers that the host reads from the device: a report after each step, and finished hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pybeam.backends.arrays import (
    FINISHED_FLOAT_COLUMNS,
    FINISHED_INT_COLUMNS,
    INT_COLUMNS,
    NUM_REPORTED,
)

# numbers of a slot in a report, which begins with one number of all slots
REPORTED = NUM_REPORTED + 1


def column(name: str) -> slice:
    """Where the numbers of that name stand in a list of the numbers of a report."""
    return slice(1 + INT_COLUMNS.index(name), None, REPORTED)


class Report(NamedTuple):
    """The numbers of some slots [A] after a step, A at least 1."""

    reason: list[int]  # [A], into STOP_REASONS
    num_rows: list[int]  # [A]
    depth: list[int]  # [A], tokens after the start token
    num_finished: list[int]  # [A] hypotheses
    steps: list[int]  # [A]
    expansions: list[int]  # [A]
    num_pages: list[int]  # [A], pages that each source holds

    @classmethod
    def of(cls, numbers: list[int], places: Sequence[int]) -> Report:
        """Read a result of `BeamState.report`, for the slots at these places."""
        # the first number is that of free pages, which belong to no slot
        lines = (numbers[1 + REPORTED * i : 1 + REPORTED * (i + 1)] for i in places)
        return cls(*map(list, zip(*lines, strict=True)))


class FinishedHypothesis(NamedTuple):
    """A finished hypothesis."""

    tokens: list[int]  # without the start token
    score: float
    final_score: float  # ranks it, as the device has computed it
    eos_id: int | None  # the token that ended it
    log_probs: list[float] | None

    @staticmethod
    def final_scores(numbers: np.ndarray) -> list[float]:
        """Read those alone that `parse` reads."""
        place = len(FINISHED_INT_COLUMNS) + FINISHED_FLOAT_COLUMNS.index("finished_final")
        return numbers[:, place].view(np.float32).tolist()

    @classmethod
    def parse(cls, numbers: np.ndarray, capacity: int) -> list[FinishedHypothesis]:
        """Read a copy of what `BeamState.finished` returns, for paths of that capacity."""
        num_ints, num_floats = len(FINISHED_INT_COLUMNS), len(FINISHED_FLOAT_COLUMNS)
        path = num_ints + num_floats + 1
        log_prob = path + capacity
        # paths have room for longer ones
        longest = int(numbers[:, path - 1].max(initial=0))
        lines = numbers[:, : path + longest].tolist()
        scores = numbers[:, num_ints : path - 1].view(np.float32).tolist()
        own: list[Any] = [None] * len(lines)
        if numbers.shape[1] > log_prob:
            own = numbers[:, log_prob : log_prob + longest].view(np.float32).tolist()
        found = []
        for ints, floats, log_probs in zip(lines, scores, own, strict=True):
            *_, eos = ints[:num_ints]
            score, of_eos, final_score = floats
            size, eos_id = ints[path - 1], None if eos < 0 else eos
            if log_probs is not None:
                log_probs = log_probs[1:size] + ([] if eos_id is None else [of_eos])
            tokens = ints[path + 1 : path + size]
            found.append(cls(tokens, score, final_score, eos_id, log_probs))
        return found
