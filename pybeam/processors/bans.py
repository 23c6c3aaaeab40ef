"""Processors that forbid tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import LARGEST_INT32, whole
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Processor, Stage, ban, check_ids, check_stage
from pybeam.processors.penalties import check_start


@dataclass(frozen=True)
class SuppressTokens(Processor):
    tokens: tuple[int, ...]
    stage: Stage = "logits"
    per_request: ClassVar = ("tokens",)

    def __post_init__(self) -> None:
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.tokens, dtype=INT),)

    def check(self, model: Model) -> None:
        check_ids("tokens", self.tokens, model)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (token,) = data  # [R, L]
        return ban(logits, token.clamp(min=0), token >= 0)


@dataclass(frozen=True)
class SuppressTokensAtStart(SuppressTokens):
    skips: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("skips", self.skips, 0, LARGEST_INT32)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (token,) = data  # [R, L]
        start = rows.position - rows.num_generated  # [R] length of the forced prefix
        is_start = (rows.position == start.clamp(min=self.skips))[:, None]
        return ban(logits, token.clamp(min=0), (token >= 0) & is_start)


@dataclass(frozen=True)
class SuppressSequences(Processor):
    sequences: tuple[tuple[int, ...], ...]
    counts_start: bool = False
    spares_eos: bool = False
    stage: Stage = "logits"
    per_request: ClassVar = ("sequences",)

    def __post_init__(self) -> None:
        check_stage(self.stage)
        if not all(self.sequences):
            raise ValueError("`sequences` must not hold an empty one: it would forbid everything")

    def parameters(self) -> tuple[Tensor, ...]:
        """Return sequences [N, L], last token first, so that those of any length begin in the same column."""
        longest = max(map(len, self.sequences), default=0)
        padded = [[*reversed(line), *[-1] * (longest - len(line))] for line in self.sequences]
        return (torch.tensor(padded, dtype=INT).view(len(padded), longest),)

    def check(self, model: Model) -> None:
        check_ids("sequences", chain.from_iterable(self.sequences), model)
        check_start(self.counts_start, model)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (sequence,) = data  # [R, N, L]
        if not sequence.numel():
            return logits
        last = sequence[..., 0]  # [R, N]
        is_near = last >= 0
        if self.spares_eos:
            is_alone = (sequence[..., 1:] < 0).all(-1)
            is_near &= ~(is_alone & torch.stack([last == eos for eos in rows.eos_ids]).any(0))
        seen, end = rows.seen(self.counts_start)  # [R, T], [R]
        for back in range(1, sequence.shape[2]):
            place = end[:, None] - (back - 1)  # [R, 1]
            token = seen.gather(1, place.clamp(min=0).long())
            token = torch.where(place >= 0, token, -1)
            is_near &= (sequence[..., back] < 0) | (sequence[..., back] == token)
        return ban(logits, last.clamp(min=0), is_near)


@dataclass(frozen=True)
class NoRepeatNgram(Processor):
    n: int
    counts_start: bool = False
    stage: Stage = "logits"

    def __post_init__(self) -> None:
        whole("n", self.n, 1, LARGEST_INT32, remedy="leave the processor out")
        check_stage(self.stage)

    def check(self, model: Model) -> None:
        check_start(self.counts_start, model)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        context_size = self.n - 1
        seen, end = rows.seen(self.counts_start)  # [R, T], [R]
        follows = seen[:, context_size:]  # [R, windows]
        if not follows.numel():
            return logits
        # -1 follows a window that reaches beyond the last token
        matches = follows >= 0
        for i in range(context_size):
            place = end[:, None] + 1 - context_size + i  # [R, 1]
            token = seen.gather(1, place.clamp(min=0).long())
            matches &= seen[:, i : i + follows.shape[1]] == token
        return ban(logits, follows.clamp(min=0), matches)
