"""Processors that say how hypotheses begin and where they may end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.models.base import Model, Rows
from pybeam.search.processors.base import (
    INF,
    INT,
    Processor,
    Stage,
    check_ids,
    check_stage,
    ids,
    number,
    whole,
)


@dataclass(frozen=True)
class MinLength(Processor):
    length: int
    counts_prefix: bool = False
    stage: Stage = "logits"
    per_request: ClassVar = ("length",)

    def __post_init__(self) -> None:
        whole("length", self.length, 0)
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.length, dtype=INT),)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (length,) = data  # [R]
        done = rows.position if self.counts_prefix else rows.num_generated
        logits[:, rows.eos_id].masked_fill_(done < length, -INF)
        return logits


@dataclass(frozen=True)
class FirstToken(Processor):
    token: int | None = None
    stage: ClassVar[Stage] = "log_probs"
    per_request: ClassVar = ("token",)

    def __post_init__(self) -> None:
        ids("token", self._tokens)

    @property
    def _tokens(self) -> list[int]:
        return [] if self.token is None else [self.token]

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(-1 if self.token is None else self.token, dtype=INT),)

    def check(self, model: Model) -> None:
        check_ids("token", self._tokens, model)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        token = data[0][:, None]  # [R, 1]
        is_forced = (rows.position[:, None] == 0) & (token >= 0)
        place = token.clamp(min=0).long()
        value = torch.where(is_forced, 0.0, logits.gather(1, place))
        return logits.masked_fill_(is_forced, -INF).scatter_(1, place, value)


@dataclass(frozen=True)
class LastToken(Processor):
    is_scored: bool = True
    stage: ClassVar[Stage] = "log_probs"

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        is_last = rows.is_last
        eos = logits[:, rows.eos_id].clone()
        value = eos if self.is_scored else torch.where(is_last, 0.0, eos)
        logits.masked_fill_(is_last[:, None], -INF)
        logits[:, rows.eos_id] = value
        return logits


@dataclass(frozen=True)
class EosGrowth(Processor):
    start: int
    factor: float
    stage: ClassVar[Stage] = "log_probs"
    per_request: ClassVar = ("start", "factor")

    def __post_init__(self) -> None:
        whole("start", self.start, 0)
        number("factor", self.factor, 0)

    def parameters(self) -> tuple[Tensor, ...]:
        return torch.tensor(self.start, dtype=INT), torch.tensor(self.factor, dtype=torch.float32)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        start, factor = data  # [R] each
        late = (rows.num_generated - start).clamp(min=0)
        value = logits[:, rows.eos_id]
        grown = value + value.abs() * (factor.to(logits.dtype) ** late - 1)
        logits[:, rows.eos_id] = torch.where(value > -INF, grown, value)
        return logits
