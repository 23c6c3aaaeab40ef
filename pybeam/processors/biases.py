"""Biases of sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pybeam.arguments import number
from pybeam.contracts import Edit, EditRule
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.bans import backwards, check_sequences, completed
from pybeam.processors.base import Processor, Stage, check_ids, check_stage, lists_of_ids
from pybeam.processors.penalties import check_start


@dataclass(frozen=True)
class SequenceBias(Processor):
    sequences: tuple[tuple[int, ...], ...]
    biases: tuple[float, ...]
    counts_start: bool = False
    stage: Stage = "logits"
    per_request: ClassVar = ("sequences", "biases")

    def __post_init__(self) -> None:
        check_stage(self.stage)
        check_sequences("biases", self.sequences)
        for bias in self.biases:
            number("biases", bias, -math.inf)

    def parameters(self) -> tuple[Tensor, ...]:
        return backwards(self.sequences), torch.tensor(self.biases, dtype=torch.float32)

    def check(self, model: Model) -> None:
        check_ids("biases", (token for line in self.sequences for token in line), model)
        check_start(self.counts_start, model)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.SEQUENCE_BIAS, (self.counts_start,), True, self.counts_start)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        sequence, bias = data  # [R, N, L], [R, N]
        if not sequence.numel():
            return logits
        taken = torch.where(completed(sequence, rows, self.counts_start), bias, 0.0)
        token = sequence[..., 0].clamp(min=0).long()
        return logits.scatter_add_(1, token, taken.to(logits.dtype))


def sequence_bias(
    biases: Mapping[Sequence[int], float] | Iterable[tuple[Sequence[int], float]] = (),
    *,
    counts_start: bool = False,
    stage: Stage = "logits",
) -> SequenceBias:
    """Add a bias to the last token of a sequence if the hypothesis ends with the tokens before it.

    That is ``x[v] + b``, where b is the sum of the biases of all sequences that v completes. A sequence of
    one token has its bias in every step. The forced prefix counts. Above 0 sequences become likelier. Per
    request: all sequences together. transformers calls it sequence_bias, with ``counts_start=True``.

    Args:
        biases: a dict of tuples of ids, or pairs of a list of ids and its bias. The last one of equal
            sequences counts.
        counts_start: whether the start token or the prompt counts as part of the hypothesis.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: they are no such pairs, a sequence is empty, or a bias is not finite.
    """
    is_list = isinstance(biases, Iterable) and not isinstance(biases, str | Tensor)
    given: Any = biases.items() if isinstance(biases, Mapping) else biases
    pairs = list(given) if is_list else [given]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError(f"`biases` must be pairs of token ids and a bias, but is {biases!r}")
    lines = lists_of_ids("biases", (line for line, _ in pairs))
    found = dict(zip(lines, (bias for _, bias in pairs), strict=True))
    return SequenceBias(tuple(found), tuple(found.values()), counts_start, stage)
