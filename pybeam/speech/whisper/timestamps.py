"""Whisper's rules for timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import LARGEST_INT32, ArgumentError, ids, whole
from pybeam.contracts import Edit, EditRule
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor, Stage, check_ids, check_stage

# in place of the largest first timestamp: the first token need not be one
FREE = -1


@dataclass(frozen=True)
class WhisperTimestamps(Processor):
    """See `whisper_timestamps`.

    Args:
        is_begun: whether an output begins with given tokens. As in CTranslate2, the token behind these may be
            any but `no_timestamps`, and the rules count from there.
    """

    no_timestamps: int
    max_initial: int | None = None
    stage: Stage = "logits"
    is_begun: bool = False
    per_request: ClassVar[tuple[str, ...]] = ("max_initial", "is_begun")

    def __post_init__(self) -> None:
        ids("no_timestamps", [self.no_timestamps])
        if self.max_initial is not None:
            whole("max_initial", self.max_initial, 0, LARGEST_INT32)
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        most = LARGEST_INT32 if self.max_initial is None else self.max_initial
        largest = min(self.no_timestamps + 1 + most, LARGEST_INT32)
        return (torch.tensor(FREE if self.is_begun else largest, dtype=INT),)

    def check(self, model: Model) -> None:
        # the first timestamp stands behind it
        check_ids("no_timestamps", [self.no_timestamps + 1], model)
        if max(model.eos_ids) > self.no_timestamps:
            problem = f"must be greater than EOS, which is {max(model.eos_ids)}, but is {self.no_timestamps}"
            raise ArgumentError("no_timestamps", problem)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.MARKS, (self.no_timestamps + 1,), True)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (largest_first,) = data  # [R]
        begin, eos = self.no_timestamps + 1, rows.eos_id
        done = rows.num_generated  # [R]
        is_free, is_behind = (done == 0) & (largest_first < 0), done >= 0
        is_first = (done == 0) & ~is_free
        # tokens of a prefix are neither text nor timestamps
        place = torch.arange(rows.history.shape[1], dtype=INT, device=logits.device)
        start = (rows.position + 1 - done)[:, None]
        is_stamp = (rows.history >= begin) & (place >= start)  # [R, T]
        latest = torch.where(is_stamp, place, -1).amax(1)  # [R]
        ends = latest == rows.position
        before = (rows.position - 1).clamp(min=0)[:, None].long()
        is_pair = ends & (is_stamp.gather(1, before)[:, 0] | (done < 2))
        is_alone = ends & ~is_pair
        token = rows.history.gather(1, latest.clamp(min=0)[:, None].long())[:, 0]
        # a timestamp that ends one segment may begin the next one
        least = torch.where(latest < 0, begin, token + 1 - is_alone.to(INT))[:, None]  # [R, 1]
        most = torch.where(is_first, largest_first, logits.shape[1])
        stamp = torch.arange(begin, logits.shape[1], dtype=INT, device=logits.device)
        is_off = (stamp < least) | (stamp > most[:, None]) | is_pair[:, None]
        stamps = logits[:, begin:].masked_fill_(is_off & is_behind[:, None], -INF)
        logits[:, self.no_timestamps].masked_fill_(is_behind, -INF)
        text, others = logits[:, :eos], logits[:, eos:begin]
        # EOS may follow a timestamp that stands alone
        no_text = is_first | is_alone
        largest = torch.maximum(
            _largest(text).masked_fill(no_text, -INF), _largest(others).masked_fill(is_first, -INF)
        )
        wins = is_behind & ~is_free & (_log_sum(stamps) > largest)
        text.masked_fill_((no_text | wins)[:, None], -INF)
        others.masked_fill_((is_first | wins)[:, None], -INF)
        return logits


def _largest(logits: Tensor) -> Tensor:
    """Return the largest logit [R] of each row; -inf where there is none."""
    if not logits.shape[1]:
        return logits.new_full(logits.shape[:1], -INF)
    return logits.amax(1)


def _log_sum(logits: Tensor) -> Tensor:
    """Compute ``log(sum(exp(logits)))`` of each row, [R]. A row's result does not depend on the others."""
    largest = logits.amax(1)
    # the rounding of torch's own logsumexp may depend on the number of rows
    excess = torch.log_softmax(logits, 1).amax(1).neg_()
    return torch.where(largest == -INF, largest, largest + excess)


def whisper_timestamps(
    no_timestamps: int, *, max_initial: int | None = None, stage: Stage = "logits"
) -> WhisperTimestamps:
    """Apply Whisper's rules for timestamps. Ids above `no_timestamps` are timestamps, 0.02 s apart.

    Only generated tokens count, and nothing of a forced prefix.

    * The first token is a timestamp.
    * After a timestamp that ends a segment comes the one that begins the next, or EOS. After a timestamp that
      begins a segment comes text.
    * Timestamps never decrease, and no segment ends where it begins.
    * If the timestamps together are more probable than any other token, the next token is one.
    * `no_timestamps` itself is forbidden.

    Per request: `max_initial`. This is ``WhisperTimeStampLogitsProcessor`` of transformers and
    ``ApplyTimestampRules`` of openai-whisper and CTranslate2.

    Args:
        no_timestamps: the id of ``<|notimestamps|>``, greater than EOS.
        max_initial: the first timestamp is at most this one, counted from 0; None: any.
        stage: see the module.

    Raises:
        TypeError, ValueError: an argument is no such number.

    See Radford et al. 2022 (arXiv:2212.04356), section 2.3 and `ApplyTimestampRules` of openai-whisper.
    """
    return WhisperTimestamps(no_timestamps, max_initial, stage)
