"""Processors that forbid tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import LARGEST_INT32, ArgumentError, ids, whole
from pybeam.contracts import Edit, EditRule
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import (
    INT,
    Processor,
    Stage,
    ban,
    check_ids,
    check_stage,
    lists_of_ids,
)
from pybeam.processors.penalties import check_start

# of the sequences of one request; each slot of a decoder has room for as many
MAX_NUMBERS = 1 << 20


@dataclass(frozen=True)
class SuppressTokens(Processor):
    tokens: tuple[int, ...]
    stage: Stage = "logits"
    per_request: ClassVar = ("tokens",)

    def __post_init__(self) -> None:
        check_stage(self.stage)

    def parameters(self) -> tuple[Tensor, ...]:
        # repeated ones would take time in every step
        return (torch.tensor([*dict.fromkeys(self.tokens)], dtype=INT),)

    def check(self, model: Model) -> None:
        check_ids("tokens", self.tokens, model)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.TOKENS, (-1,))

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (token,) = data  # [R, L]
        return ban(logits, token.clamp(min=0), token >= 0)


@dataclass(frozen=True)
class SuppressTokensAtStart(SuppressTokens):
    skips: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("skips", self.skips, 0, LARGEST_INT32)

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.TOKENS, (self.skips,))

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        (token,) = data  # [R, L]
        start = rows.position - rows.num_generated  # [R] length of the forced prefix
        is_start = (rows.position == start.clamp(min=self.skips))[:, None]
        return ban(logits, token.clamp(min=0), (token >= 0) & is_start)


def check_sequences(name: str, sequences: tuple[tuple[int, ...], ...]) -> None:
    """Raise ValueError if one is empty, or if they are too many."""
    if not all(sequences):
        raise ArgumentError(name, "must not hold an empty one: it would be about everything")
    num, longest = len(sequences), max(map(len, sequences), default=0)
    if num * longest > MAX_NUMBERS:
        raise ArgumentError(
            name,
            f"must be at most {MAX_NUMBERS:,} numbers, their count times the longest one's length, but "
            f"are {num:,} times {longest:,}; leave long ones out",
        )


def backwards(sequences: tuple[tuple[int, ...], ...]) -> Tensor:
    """Return sequences [N, L], last token first, so that any begin in the same column, padded with -1."""
    longest = max(map(len, sequences), default=0)
    padded = [[*reversed(line), *[-1] * (longest - len(line))] for line in sequences]
    return torch.tensor(padded, dtype=INT).view(len(padded), longest)


@dataclass(frozen=True)
class SuppressSequences(Processor):
    sequences: tuple[tuple[int, ...], ...]
    counts_start: bool = False
    spares_eos: bool = False
    stage: Stage = "logits"
    per_request: ClassVar = ("sequences",)

    def __post_init__(self) -> None:
        check_stage(self.stage)
        check_sequences("sequences", self.sequences)

    def parameters(self) -> tuple[Tensor, ...]:
        """Return `backwards` of the sequences, and their number."""
        return self._arrays

    @cached_property
    def _arrays(self) -> tuple[Tensor, ...]:
        """The same; many requests may share them."""
        return backwards(self.sequences), torch.tensor(len(self.sequences), dtype=INT)

    def check(self, model: Model) -> None:
        sequence, _ = self._arrays
        check_ids("sequences", [int(sequence.max())] if sequence.numel() else [], model)
        check_start(self.counts_start, model)

    @property
    def edit(self) -> EditRule:
        return EditRule(
            Edit.SEQUENCES, (self.counts_start, self.spares_eos), True, self.counts_start
        )

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        sequence, _ = data  # [R, N, L]
        if not sequence.numel():
            return logits
        is_near = completed(sequence, rows, self.counts_start)
        last = sequence[..., 0]  # [R, N]
        if self.spares_eos:
            is_alone = (sequence[..., 1:] < 0).all(-1)
            is_near &= ~(is_alone & torch.stack([last == eos for eos in rows.eos_ids]).any(0))
        return ban(logits, last.clamp(min=0), is_near)


def completed(sequence: Tensor, rows: Rows, counts_start: bool) -> Tensor:
    """Whether the next token may complete each of these sequences [R, N, L], last token first: [R, N]."""
    is_near = sequence[..., 0] >= 0
    seen, end = rows.seen(counts_start)  # [R, T], [R]
    for back in range(1, sequence.shape[2]):
        place = end[:, None] - (back - 1)  # [R, 1]
        token = seen.gather(1, place.clamp(min=0).long())
        token = torch.where(place >= 0, token, -1)
        is_near &= (sequence[..., back] < 0) | (sequence[..., back] == token)
    return is_near


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

    @property
    def edit(self) -> EditRule:
        return EditRule(Edit.NGRAM, (self.counts_start, self.n), True, self.counts_start)

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


def no_repeat_ngram(
    n: int, *, counts_start: bool = False, stage: Stage = "logits"
) -> NoRepeatNgram:
    """Forbid the token that would complete an n-gram which the hypothesis already has.

    A token v is forbidden if ``(y[t-n+2], …, y[t], v)`` is ``(y[i], …, y[i+n-1])`` for some i, where y are
    the tokens so far, forced prefix included. n = 1 forbids every token of the hypothesis.

    This is CTranslate2's no_repeat_ngram_size. transformers and fairseq also count the start token and the
    prompt (``counts_start=True``). The start token matters only for n = 1, unless a model can generate it.

    Args:
        n: tokens of an n-gram.
        counts_start: whether the start token or the prompt counts as part of the hypothesis.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: n is not a whole number from 1 on.

    See Paulus et al. 2018.
    """
    return NoRepeatNgram(n, counts_start, stage)


def suppress_tokens(tokens: Iterable[int], *, stage: Stage = "logits") -> SuppressTokens:
    """Forbid these tokens. Per request: the tokens.

    transformers and CTranslate2 call it suppress_tokens.

    Args:
        tokens: ids.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: they are no token ids.
    """
    return SuppressTokens(ids("tokens", tokens), stage)


def suppress_tokens_at_start(
    tokens: Iterable[int], *, skips: int = 0, stage: Stage = "logits"
) -> SuppressTokensAtStart:
    """Forbid these tokens at the beginning of a hypothesis, right behind the forced prefix.

    Per request: the tokens. transformers calls it begin_suppress_tokens, CTranslate2 suppress_blank.

    Args:
        tokens: ids.
        skips: least number of tokens behind the start token, of the prefix or generated, before that place;
            transformers skips the token of `first_token`.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: they are no token ids, or `skips` is not a whole number from 0 on.
    """
    return SuppressTokensAtStart(ids("tokens", tokens), stage, skips)


def suppress_sequences(
    sequences: Iterable[Iterable[int]],
    *,
    counts_start: bool = False,
    spares_eos: bool = False,
    stage: Stage = "logits",
) -> SuppressSequences:
    """Forbid the last token of each sequence if the hypothesis ends with the tokens before it.

    The forced prefix counts. Per request: the sequences. CTranslate2 calls it suppress_sequences.
    transformers' bad_words_ids is the same with ``counts_start=True`` and ``spares_eos=True``.

    Args:
        sequences: lists of token ids.
        counts_start: whether the start token or the prompt counts as part of the hypothesis.
        spares_eos: whether the sequence ``[EOS]`` is ignored.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: they are no lists of token ids, or one is empty.
    """
    sequences = lists_of_ids("sequences", sequences)
    return SuppressSequences(sequences, counts_start, spares_eos, stage)


def no_unk(unk_id: int, *, stage: Stage = "logits") -> SuppressTokens:
    """Forbid the token for unknown words: ``suppress_tokens([unk_id])``. CTranslate2 calls it disable_unk.

    Args:
        unk_id: the id of that token.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: it is no token id.
    """
    return SuppressTokens(ids("unk_id", [unk_id]), stage)
