"""Processors that make tokens more or less probable."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError, ids, number
from pybeam.contracts import Edit, EditRule
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Processor, Stage, check_ids, check_stage


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
        token, _ = rows.seen(self.counts_start)  # [R, T]
        return penalised(logits, token, data[0])


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


def penalised(logits: Tensor, token: Tensor, penalty: Tensor) -> Tensor:
    """Write ``x * penalty`` if ``x < 0``, else ``x / penalty``, at tokens [R, T], by penalties [R].

    Places without a token hold something negative.
    """
    penalty = penalty[:, None]
    largest = token.amax(1, keepdim=True)  # [R, 1]
    has_any = largest >= 0
    # places without a token repeat one that counts, so that each token is written with one value
    token = torch.where(token < 0, largest, token).clamp(min=0).long()
    value = logits.gather(1, token)
    changed = torch.where(value < 0, value * penalty, value / penalty)
    return logits.scatter_(1, token, torch.where(has_any, changed, value))


def check_start(counts_start: bool, model: Model) -> None:
    """Raise ValueError if the start token should count but can never be generated."""
    if counts_start and model.start_id >= model.vocab_size:
        raise ValueError(
            f"`counts_start` needs a start token of the vocabulary, 0 to {model.vocab_size - 1}, "
            f"but the model starts with {model.start_id}; leave it out"
        )


def temperature(temperature: float) -> Temperature:
    """Divide logits: ``logits / temperature``. Above 1 probabilities become smoother, below 1 sharper.

    Per request: the temperature. FireRedASR calls it softmax_smoothing, fairseq temperature. In transformers
    and CTranslate2 it belongs to sampling, and beam search ignores it.

    Args:
        temperature: 1 changes nothing.

    Raises:
        ValueError: it is not a positive number.
    """
    return Temperature(temperature)


def eos_penalty(penalty: float) -> EosPenalty:
    """Multiply the log-prob of EOS: ``log_prob[EOS] * penalty``. Below 1 hypotheses end earlier.

    Stage "log_probs". Per request: the penalty. This is FireRedASR's eos_penalty, where 0 < penalty <= 1.

    Args:
        penalty: 1 changes nothing.

    Raises:
        ValueError: it is not a positive number.
    """
    return EosPenalty(penalty)


def token_penalty(token: int, penalty: float) -> TokenPenalty:
    """Subtract from the log-prob of one token: ``log_prob[token] - penalty``.

    Stage "log_probs". Per request: the penalty. For the token of unknown words this is fairseq's unkpen.

    Raises:
        TypeError, ValueError: `token` is no token id, or the penalty not finite.
    """
    return TokenPenalty(token, penalty)


def repetition_penalty(
    penalty: float, *, counts_start: bool = False, stage: Stage = "logits"
) -> RepetitionPenalty:
    """Penalise tokens that the hypothesis has: ``x * penalty`` if ``x < 0``, else ``x / penalty``.

    A token is penalised once, however often it occurs. The forced prefix counts. Above 1 repetitions become
    less probable. Per request: the penalty.

    This is CTranslate2's repetition_penalty. transformers also counts the start token or the prompt
    (``counts_start=True``). With models that start from EOS, such as M2M100, that penalises EOS in every
    step.

    Args:
        penalty: 1 changes nothing.
        counts_start: whether the start token or the prompt counts as part of the hypothesis.
        stage: see `pybeam.processors`. Log-probabilities are never positive, so the penalty multiplies them.

    Raises:
        ValueError: the penalty is not a positive number.

    See Keskar et al. 2019 (CTRL).
    """
    return RepetitionPenalty(penalty, counts_start, stage)


def biased_prefix(beta: float, prefix: Iterable[int] = ()) -> BiasedPrefix:
    """Make a prefix likely: ``p' = (1 - beta) p + beta [v = prefix[t]]`` while the hypothesis follows it.

    t counts from behind `Request.prefix`. With a larger beta hypotheses leave the prefix less often. Stage
    "log_probs". Per request: beta, and usually the prefix. CTranslate2 calls it prefix_bias_beta.

    Args:
        beta: from 0 (no bias) to less than 1.
        prefix: token ids.

    Raises:
        TypeError, ValueError: beta is out of range or the prefix no token ids.
    """
    return BiasedPrefix(beta, ids("prefix", prefix))
