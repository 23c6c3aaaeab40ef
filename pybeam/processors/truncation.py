"""Processors that leave the most probable tokens: top-k, top-p and min-p."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.arguments import LARGEST_INT32, ArgumentError, real, whole
from pybeam.backends import Backend
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor, Stage, check_stage

# (numbers [R, V], a parameter [R]) -> the least number that stays in each row [R, 1]
Floor = Callable[[Tensor, Tensor], Tensor]


class Truncation(Processor):
    """Forbids the tokens of a row that are below a floor. Equal tokens stay together or go together."""

    takes_slots: ClassVar[bool] = True
    asks: ClassVar[str]  # what a kernel calls the parameter

    @abstractmethod
    def cut(self, x: Tensor, given: Tensor) -> Tensor:
        """Return x [R, V] with -inf below the floors that follow from the parameter [R]."""

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        return self.cut(logits, data[0].index_select(0, rows.row_slot))

    def computed(
        self, backend: Backend, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]
    ) -> Tensor:
        # in float64 nothing is rounded to float32, and classes of others may cut as they like
        is_known = type(self) in (TopK, TopP, MinP)
        if backend.draw is None or logits.dtype == torch.float64 or not is_known:
            return self(logits, rows, data)
        cut: Tensor = backend.draw.cut(logits, rows.row_slot, **{self.asks: data[0]})
        return cut


@dataclass(frozen=True)
class TopK(Truncation):
    k: int = 0
    stage: Stage = "logits"
    per_request: ClassVar = ("k",)
    asks: ClassVar = "k"

    def __post_init__(self) -> None:
        whole("top_k", self.k, 0, LARGEST_INT32)
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.k, dtype=INT),)

    def cut(self, x: Tensor, given: Tensor) -> Tensor:
        return _cut(x, given, (given > 0) & (given < x.shape[1]), _kth_largest)


@dataclass(frozen=True)
class TopP(Truncation):
    p: float = 1.0
    stage: Stage = "logits"
    per_request: ClassVar = ("p",)
    asks: ClassVar = "p"

    def __post_init__(self) -> None:
        _check_share("top_p", self.p)
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.p, dtype=torch.float32),)

    def cut(self, x: Tensor, given: Tensor) -> Tensor:
        return _cut(x, given, given < 1, _least_of_nucleus)


@dataclass(frozen=True)
class MinP(Truncation):
    p: float = 0.0
    stage: Stage = "logits"
    per_request: ClassVar = ("p",)
    asks: ClassVar = "log_ratio"

    def __post_init__(self) -> None:
        _check_share("min_p", self.p)
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(math.log(self.p) if self.p else -INF, dtype=torch.float32),)

    def cut(self, x: Tensor, given: Tensor) -> Tensor:
        return _cut(x, given, given > -INF, _near_the_largest)


def _check_share(name: str, value: float) -> None:
    real(name, value)
    if not 0 <= value <= 1:
        raise ArgumentError(name, f"must be 0 to 1, but is {value}")


def may_read(x: Tensor) -> bool:
    """Whether the host may look at numbers within a step; on a GPU it would wait for them."""
    return x.device.type == "cpu"


def _cut(x: Tensor, given: Tensor, is_on: Tensor, floor: Floor) -> Tensor:
    """Forbid what is below the floors of the rows where is_on [R]; `x` may be overwritten."""
    if may_read(x):
        row = is_on.nonzero()[:, 0]
        if row.numel():
            own = x.index_select(0, row)
            own.masked_fill_(own < floor(own, given.index_select(0, row)), -INF)
            x.index_copy_(0, row, own)
        return x
    least = torch.where(is_on[:, None], floor(x, given), -INF)
    return x.masked_fill_(x < least, -INF)


def _kth_largest(x: Tensor, k: Tensor) -> Tensor:
    most = int(k.max()) if may_read(x) else x.shape[1]
    place = (k.clamp(1, x.shape[1]) - 1).long()
    return x.topk(most).values.gather(1, place[:, None])


def _least_of_nucleus(x: Tensor, p: Tensor) -> Tensor:
    """Return the largest number at which the probability of all that are larger is not yet p."""
    if may_read(x):
        num_left = max(int((x > -INF).sum(1).max()), 1)
        if 4 * num_left < x.shape[1]:
            x = x.topk(num_left).values
    # in float64, so that hardly any sum is p but for rounding
    log_prob, p = x.double().log_softmax(1), p.double()[:, None]
    most = size = x.shape[1]
    if may_read(x):
        # a token of (1 - p) / V or less, and all that are no larger, have 1 - p together at most
        may_stay = log_prob > ((1 - p) / size).log()
        most = max(int(may_stay.sum(1).max()), 1)
    value, token = log_prob.topk(most)  # descending
    before = F.pad(value[:, :-1].exp().cumsum(1), (1, 0))
    last = ((before < p).sum(1, keepdim=True) - 1).clamp(min=0)
    return x.gather(1, token.gather(1, last))


def _near_the_largest(x: Tensor, log_ratio: Tensor) -> Tensor:
    return x.amax(1, keepdim=True) + log_ratio.to(x.dtype)[:, None]


def top_k(k: int = 0, *, stage: Stage = "logits") -> TopK:
    """Forbid all tokens but the k most probable: ``x[v]`` stays if it is at least the k-th largest.

    Tokens that are equal to the k-th largest all stay, so that there may be more than k. Per request: k.
    transformers and CTranslate2 (``sampling_topk``) have the same; among equal tokens CTranslate2 takes k.

    Args:
        k: 0 forbids nothing.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: k is not a whole number from 0 on.

    See Fan et al. 2018.
    """
    return TopK(k, stage)


def top_p(p: float = 1.0, *, stage: Stage = "logits") -> TopP:
    """Forbid all but the nucleus: v stays if all tokens that are more probable have less than p together.

    The most probable token always stays, and equal tokens stay together or go together. Per request: p.
    transformers and CTranslate2 (``sampling_topp``) order equal tokens somehow, and cut between them.

    Args:
        p: 1 forbids nothing; 0 leaves the most probable token, and those that are equal to it.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: p is not from 0 to 1.

    See Holtzman et al. 2020.
    """
    return TopP(p, stage)


def min_p(p: float = 0.0, *, stage: Stage = "logits") -> MinP:
    """Forbid improbable tokens: v stays if its probability is at least p times that of the most probable one.

    So ``x[v] >= max(x) + log(p)``. Per request: p. transformers and vLLM have the same.

    Args:
        p: 0 forbids nothing; 1 leaves the most probable token, and those that are equal to it.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: p is not from 0 to 1.

    See Nguyen et al. 2024.
    """
    return MinP(p, stage)
