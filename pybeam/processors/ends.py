"""Processors for the beginning and the end of hypotheses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import LARGEST_INT32, ids, number, whole
from pybeam.contracts import Edit, EditRule
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor, Stage, check_ids, check_stage


@dataclass(frozen=True)
class MinLength(Processor):
    length: int
    counts_prefix: bool = False
    stage: Stage = "logits"
    per_request: ClassVar = ("length",)

    def __post_init__(self) -> None:
        whole("length", self.length, 0, LARGEST_INT32)
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.length, dtype=INT),)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.MIN_LENGTH, (self.counts_prefix,))

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (length,) = data  # [R]
        done = rows.position if self.counts_prefix else rows.num_generated
        for eos_id in rows.eos_ids:
            logits[:, eos_id].masked_fill_(done < length, -INF)
        return logits


@dataclass(frozen=True)
class FirstToken(Processor):
    token: int | None = None
    stage = "log_probs"
    per_request: ClassVar = ("token",)

    def __post_init__(self) -> None:
        ids("token", self._tokens)

    @property
    def forces_first(self) -> bool:  # type: ignore[override]
        return self.token is not None

    @property
    def _tokens(self) -> list[int]:
        return [] if self.token is None else [self.token]

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(-1 if self.token is None else self.token, dtype=INT),)

    def check(self, model: Model) -> None:
        check_ids("token", self._tokens, model)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.FIRST_TOKEN)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        token = data[0][:, None]  # [R, 1]
        # a prefix takes the place of this token
        is_first = (rows.position == 0) & (rows.num_generated == 0)
        is_forced = is_first[:, None] & (token >= 0)
        place = token.clamp(min=0).long()
        value = torch.where(is_forced, 0.0, logits.gather(1, place))
        return logits.masked_fill_(is_forced, -INF).scatter_(1, place, value)


@dataclass(frozen=True)
class LastToken(Processor):
    is_scored: bool = True
    stage = "log_probs"

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.LAST_TOKEN, (self.is_scored,))

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        is_last = rows.is_last
        of_eos = [logits[:, eos_id].clone() for eos_id in rows.eos_ids]
        logits.masked_fill_(is_last[:, None], -INF)
        for eos_id, value in zip(rows.eos_ids, of_eos, strict=True):
            logits[:, eos_id] = value if self.is_scored else torch.where(is_last, 0.0, value)
        return logits


@dataclass(frozen=True)
class EosGrowth(Processor):
    start: int
    factor: float
    stage = "log_probs"
    per_request: ClassVar = ("start", "factor")

    def __post_init__(self) -> None:
        whole("start", self.start, 0, LARGEST_INT32)
        number("factor", self.factor, 0)

    def parameters(self) -> tuple[Tensor, ...]:
        return torch.tensor(self.start, dtype=INT), torch.tensor(self.factor, dtype=torch.float32)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        start, factor = data  # [R] each
        late = (rows.num_generated - start).clamp(min=0)
        growth = factor.to(logits.dtype) ** late - 1
        for eos_id in rows.eos_ids:
            value = logits[:, eos_id]
            logits[:, eos_id] = torch.where(value > -INF, value + value.abs() * growth, value)
        return logits


def eos_growth(start: int, factor: float) -> EosGrowth:
    """Raise EOS to ``log_prob[EOS] + |log_prob[EOS]| * (factor**(t - start) - 1)`` behind `start` tokens.

    t counts generated tokens. Above 1 hypotheses end earlier, the more so the longer they are. Results may
    be positive. Stage "log_probs". Per request: both numbers. transformers calls it
    exponential_decay_length_penalty.

    Raises:
        TypeError, ValueError: `start` is not a whole number from 0 on, or `factor` not positive.
    """
    return EosGrowth(start, factor)


def min_length(length: int, *, counts_prefix: bool = False, stage: Stage = "logits") -> MinLength:
    """Forbid EOS until `length` tokens have been generated. Per request: the length.

    In CTranslate2's min_decoding_length the forced prefix counts (``counts_prefix=True``). With stage
    "log_probs" it does the same as the `min_length` of an algorithm.

    Raises:
        TypeError, ValueError: the length is not a whole number from 0 on.
    """
    return MinLength(length, counts_prefix, stage)


def first_token(token: int | None = None) -> FirstToken:
    """Allow only this token behind the start token, at log-prob 0. None allows any token.

    This is a generated token, which counts in every length. `Request.prefix` does not count, and takes its
    place. Stage "log_probs". Per request: the token. transformers calls it forced_bos_token_id.

    Raises:
        TypeError, ValueError: it is no token id.
    """
    return FirstToken(token)


def force_eos(*, is_scored: bool = True) -> LastToken:
    """Allow only EOS as the last token before the limit (`max_length`).

    EOS has its own log-prob there, as in fairseq. With ``is_scored=False`` it is 0, as in transformers'
    forced_eos_token_id and in Yang et al. 2020. Stage "log_probs".
    """
    return LastToken(is_scored)
