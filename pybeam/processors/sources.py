"""Processors about the tokens of a request's source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import LARGEST_INT32, ids, number, whole
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.bans import SuppressSequences
from pybeam.processors.base import INT, Processor, Stage, check_ids, check_stage
from pybeam.processors.penalties import penalised


class SourceNgrams(SuppressSequences):
    """The n-grams of a source. A class of its own, beside sequences that are banned for other reasons."""


@dataclass(frozen=True)
class SourcePenalty(Processor):
    penalty: float
    source: tuple[int, ...] = ()
    stage: Stage = "logits"
    per_request: ClassVar = ("penalty", "source")

    def __post_init__(self) -> None:
        number("penalty", self.penalty, 0)
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        # repeated ones would take time in every step
        token = torch.tensor([*dict.fromkeys(self.source)], dtype=INT)
        return torch.tensor(1 / self.penalty, dtype=torch.float32), token

    def check(self, model: Model) -> None:
        check_ids("source", self.source, model)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        inverse, token = data  # [R], [R, L]
        return penalised(logits, token, inverse) if token.shape[1] else logits


def encoder_repetition_penalty(
    penalty: float, source: Iterable[int] = (), *, stage: Stage = "logits"
) -> SourcePenalty:
    """Make the tokens of the source likelier: ``x / penalty`` if ``x < 0``, else ``x * penalty``.

    A token counts once, however often the source has it. Above 1 its tokens become more probable. Per
    request: both, since each has a source of its own: ``Request(source,
    processors=[encoder_repetition_penalty(1.2, source)])``. transformers has it under the same name.

    Args:
        penalty: 1 changes nothing.
        source: ids of the model's target vocabulary.
        stage: see `pybeam.processors`. Log-probabilities are never positive, so the penalty divides them.

    Raises:
        TypeError, ValueError: the penalty is not a positive number, or the source no token ids.
    """
    return SourcePenalty(penalty, ids("source", source), stage)


def encoder_no_repeat_ngram(
    n: int, source: Iterable[int] = (), *, counts_start: bool = False, stage: Stage = "logits"
) -> SourceNgrams:
    """Forbid the token that would complete an n-gram of the source.

    A token v is forbidden if ``(y[t-n+2], …, y[t], v)`` is ``(x[i], …, x[i+n-1])`` for some i, where x is the
    source and y are the tokens so far, forced prefix included. n = 1 forbids every token of the source. Per
    request: both. transformers calls it encoder_no_repeat_ngram_size, with ``counts_start=True``.

    Args:
        n: tokens of an n-gram.
        source: token ids.
        counts_start: whether the start token or the prompt counts as part of the hypothesis.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: n is not a whole number from 1 on, or the source no token ids.
    """
    whole("n", n, 1, LARGEST_INT32, remedy="leave the processor out")
    tokens = ids("source", source)
    ngrams = dict.fromkeys(tokens[i : i + n] for i in range(len(tokens) - n + 1))
    return SourceNgrams(tuple(ngrams), counts_start, False, stage)
