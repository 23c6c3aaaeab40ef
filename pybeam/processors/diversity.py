"""Make tokens less probable that earlier groups of a diverse search have chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import number
from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Processor


@dataclass(frozen=True)
class Diversity(Processor):
    penalty: float
    chosen: tuple[tuple[int, ...], ...] = field(default=(), repr=False)  # tokens, step by step
    stage = "log_probs"
    per_request: ClassVar = ("penalty",)

    def __post_init__(self) -> None:
        number("diversity_penalty", self.penalty, 0)

    def parameters(self) -> tuple[Tensor, ...]:
        """Return the penalty and the tokens [T, C]. T has few sizes, so that arrays are rarely replaced."""
        most = max(map(len, self.chosen), default=0)
        num_steps = 1 << (len(self.chosen) - 1).bit_length() if self.chosen else 0
        tokens = torch.full((num_steps, most), -1, dtype=INT)
        for line, step in zip(tokens, self.chosen, strict=False):
            line[: len(step)] = torch.tensor(step, dtype=INT)
        return torch.tensor(self.penalty, dtype=torch.float32), tokens

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        penalty, chosen = data  # [R], [R, T, C]
        num_steps = chosen.shape[1]
        if not chosen.numel():
            return logits
        step = rows.num_generated.long()  # [R]
        number = torch.arange(step.numel(), device=step.device)
        token = chosen[number, step.clamp(0, num_steps - 1)]  # [R, C]
        is_there = (token >= 0) & ((step >= 0) & (step < num_steps))[:, None]
        taken = torch.where(is_there, -penalty[:, None], 0.0).to(logits.dtype)
        # a token counts as often as it was chosen
        return logits.scatter_add_(1, token.clamp(min=0).long(), taken)


def diversity(penalty: float) -> Diversity:
    """Set another penalty for one request of a `pybeam.diverse` search. Elsewhere it does nothing.

    Stage "log_probs". Per request: the penalty.

    Raises:
        ValueError: the penalty is not a positive number.
    """
    return Diversity(penalty)
