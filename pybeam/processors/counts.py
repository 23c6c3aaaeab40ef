"""A penalty that follows how often a hypothesis has a token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import number
from pybeam.contracts import Edit, EditRule
from pybeam.models.rows import Rows
from pybeam.processors.base import Processor, Stage, check_stage
from pybeam.processors.truncation import may_read


@dataclass(frozen=True)
class CountPenalty(Processor):
    frequency: float = 0.0
    presence: float = 0.0
    stage: Stage = "logits"
    per_request: ClassVar = ("frequency", "presence")

    def __post_init__(self) -> None:
        number("frequency", self.frequency, -math.inf)
        number("presence", self.presence, -math.inf)
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(
            torch.tensor(one, dtype=torch.float32) for one in (self.frequency, self.presence)
        )

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.COUNTS, reads_history=True)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        frequency, presence = (one.to(logits.dtype)[:, None] for one in data)  # [R, 1] each
        if may_read(logits) and not (frequency.any() or presence.any()):
            return logits
        token, _ = rows.seen(False)  # [R, T]
        found = (token >= 0).to(logits.dtype)
        count = torch.zeros_like(logits).scatter_add_(1, token.clamp(min=0).long(), found)  # [R, V]
        return logits.sub_(count * frequency + (count > 0) * presence)


def count_penalty(
    frequency: float = 0.0, presence: float = 0.0, *, stage: Stage = "logits"
) -> CountPenalty:
    """Penalise tokens that the hypothesis has: ``x[v] - frequency * c[v] - presence * (c[v] > 0)``.

    c[v] is how often the hypothesis has v; the forced prefix counts, and the prompt does not. Above 0 a token
    becomes less probable the more often it has come. Per request: both numbers. These are OpenAI's
    frequency_penalty and presence_penalty, and vLLM's.

    Args:
        frequency, presence: 0 changes nothing.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: one is no finite number.
    """
    return CountPenalty(frequency, presence, stage)
