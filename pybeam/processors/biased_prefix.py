"""A prefix that is made likely instead of forced."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError, number
from pybeam.contracts import Edit, EditRule
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Processor, check_ids


@dataclass(frozen=True)
class BiasedPrefix(Processor):
    beta: float
    prefix: tuple[int, ...] = ()
    stage = "log_probs"
    per_request: ClassVar = ("beta", "prefix")

    def __post_init__(self) -> None:
        if self.beta != 0:
            number("beta", self.beta, 0, 1)

    def parameters(self) -> tuple[Tensor, ...]:
        log_beta = math.log(self.beta) if self.beta else -math.inf
        logs = torch.tensor([log_beta, math.log1p(-self.beta)], dtype=torch.float32)
        return logs, torch.tensor(self.prefix, dtype=INT)

    def check(self, model: Model) -> None:
        check_ids("prefix", self.prefix, model)
        most = model.max_tokens if model.max_positions is None else model.max_positions
        if len(self.prefix) > most:
            problem = (
                f"must have at most {most} tokens, as hypotheses do, but has {len(self.prefix)}"
            )
            raise ArgumentError("prefix", problem)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.BIASED_PREFIX, reads_history=True)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        logs, prefix = data  # [R, 2], [R, P]
        size = prefix.shape[1]
        if not size:
            return logits
        done = rows.num_generated[:, None]  # [R, 1]
        place = torch.arange(size, dtype=INT, device=prefix.device)  # [P]
        first = rows.position[:, None] + 1 - done  # place of the first generated token
        made = rows.history.gather(1, (first + place).clamp(0, rows.history.shape[1] - 1).long())
        follows = ((made == prefix) | (place >= done)).all(1, keepdim=True)
        wanted = prefix.gather(1, done.clamp(0, size - 1).long())  # [R, 1]
        follows &= (done >= 0) & (done < size) & (wanted >= 0)
        log_beta, log_rest = logs.to(logits.dtype).split(1, dim=1)  # [R, 1] each
        logits.add_(torch.where(follows, log_rest, 0.0))
        token = wanted.clamp(min=0).long()
        value = logits.gather(1, token)
        return logits.scatter_(
            1, token, torch.where(follows, torch.logaddexp(value, log_beta), value)
        )
