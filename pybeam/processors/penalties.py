"""Processors that make tokens more or less probable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import ids, number
from pybeam.contracts import Edit, EditRule
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import Processor, Stage, check_ids, check_stage


@dataclass(frozen=True)
class Temperature(Processor):
    temperature: float
    per_request: ClassVar = ("temperature",)

    def __post_init__(self) -> None:
        number("temperature", self.temperature, 0)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.temperature, dtype=torch.float32),)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (temperature,) = data  # [R]
        return logits.div_(temperature[:, None])


@dataclass(frozen=True)
class EosPenalty(Processor):
    penalty: float
    stage = "log_probs"
    per_request: ClassVar = ("penalty",)

    def __post_init__(self) -> None:
        number("penalty", self.penalty, 0)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.penalty, dtype=torch.float32),)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.EOS_PENALTY)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (penalty,) = data  # [R]
        for eos_id in rows.eos_ids:
            logits[:, eos_id].mul_(penalty)
        return logits


@dataclass(frozen=True)
class TokenPenalty(Processor):
    token: int
    penalty: float
    stage = "log_probs"
    per_request: ClassVar = ("penalty",)

    def __post_init__(self) -> None:
        ids("token", [self.token])
        number("penalty", self.penalty, -math.inf)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.penalty, dtype=torch.float32),)

    def check(self, model: Model) -> None:
        check_ids("token", [self.token], model)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.TOKEN_PENALTY, (self.token,))

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (penalty,) = data  # [R]
        logits[:, self.token].sub_(penalty)
        return logits


@dataclass(frozen=True)
class RepetitionPenalty(Processor):
    penalty: float
    counts_start: bool = False
    stage: Stage = "logits"
    per_request: ClassVar = ("penalty",)

    def __post_init__(self) -> None:
        number("penalty", self.penalty, 0)
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.penalty, dtype=torch.float32),)

    def check(self, model: Model) -> None:
        check_start(self.counts_start, model)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.REPETITION, (self.counts_start,), True, self.counts_start)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        penalty = data[0][:, None]  # [R, 1]
        token, _ = rows.seen(self.counts_start)  # [R, T]
        largest = token.amax(1, keepdim=True)  # [R, 1]
        has_any = largest >= 0
        # places without a token repeat one that counts, so that each token is written with one value
        token = torch.where(token < 0, largest, token).clamp(min=0).long()
        value = logits.gather(1, token)
        penalised = torch.where(value < 0, value * penalty, value / penalty)
        return logits.scatter_(1, token, torch.where(has_any, penalised, value))


def check_start(counts_start: bool, model: Model) -> None:
    """Raise ValueError if the start token should count but can never be generated."""
    if counts_start and model.start_id >= model.vocab_size:
        raise ValueError(
            f"`counts_start` needs a start token of the vocabulary, 0 to {model.vocab_size - 1}, "
            f"but the model starts with {model.start_id}; leave it out"
        )
