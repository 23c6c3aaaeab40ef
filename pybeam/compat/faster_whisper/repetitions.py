"""Rules about repetitions that count what a window says, and neither its prompt nor control tokens."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from pybeam.models.rows import Rows
from pybeam.processors.bans import NoRepeatNgram
from pybeam.processors.penalties import RepetitionPenalty


@dataclass(frozen=True)
class SpokenPenalty(RepetitionPenalty):
    """`pybeam.processors.repetition_penalty` behind the prompt.

    Args:
        start, no_timestamps: the first and the last control token; the first one begins a transcript.
    """

    start: int = 0
    no_timestamps: int = 0

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        return super().__call__(logits, spoken(rows, self.start, self.no_timestamps), data)


@dataclass(frozen=True)
class SpokenNgrams(NoRepeatNgram):
    """`pybeam.processors.no_repeat_ngram` behind the prompt.

    Args:
        start, no_timestamps: see `SpokenPenalty`.
    """

    start: int = 0
    no_timestamps: int = 0

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        return super().__call__(logits, spoken(rows, self.start, self.no_timestamps), data)


def spoken(rows: Rows, start: int, no_timestamps: int) -> Rows:
    """Return the rows as if their tokens were those behind the prompt alone."""
    history = rows.history  # [R, T]
    is_behind = (history == start).cumsum(1) > 0
    is_control = (history >= start) & (history <= no_timestamps)
    other = copy.copy(rows)
    vars(other)["history"] = torch.where(is_behind & ~is_control, history, -1)
    return other
