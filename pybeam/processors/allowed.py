"""Processors that allow some tokens only: those of sequences, or of a function's mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pybeam.automata.sequences import sequences_automaton
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, Processor, Stage, check_stage, lists_of_ids
from pybeam.processors.constraints import Constraint


@dataclass(frozen=True)
class AllowedTokens(Processor):
    function: Callable[[Rows], Tensor]
    stage: Stage = "logits"
    can_capture: bool = False

    def __post_init__(self) -> None:
        check_stage(self.stage)
        if not callable(self.function):
            raise TypeError(f"`function` must be a function of `rows`, but is {self.function!r}")

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        mask = self.function(rows)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != logits.shape:
            given = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
            raise ValueError(
                f"`function` must return a bool mask [R, V] = {list(logits.shape)}, True where a token "
                f"is allowed, but returned {given}"
            )
        return logits.masked_fill_(~mask, -INF)


def allowed_sequences(sequences: Iterable[Iterable[int]], *, stage: Stage = "logits") -> Constraint:
    """Allow nothing but these sequences, each followed by EOS.

    A token is allowed if some sequence begins with the tokens behind the forced prefix and this token, and
    fits into `max_length` with EOS. EOS is allowed behind a whole sequence. The longest sequence and EOS are
    the default of `max_length`. It is a `constraint` of the tree of the sequences, so a request may bring
    another one.

    transformers does the same with prefix_allowed_tokens_fn over a trie, row by row.

    Args:
        sequences: lists of ids without EOS, none of them empty.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: they are no lists of token ids, one is empty, or there is none. With a decoder
            or a request: see `constraint`.

    See De Cao et al. 2021 (GENRE).
    """
    lines = lists_of_ids("sequences", sequences)
    if not lines:
        raise ValueError("`sequences` must hold at least one, but is empty")
    if not all(lines):
        raise ValueError("`sequences` must not hold an empty one; leave it out")
    return Constraint(sequences_automaton(lines), stage)


def allowed_tokens(
    function: Callable[[Rows], Tensor], *, stage: Stage = "logits", can_capture: bool = False
) -> AllowedTokens:
    """Allow the tokens of a mask: ``function(rows)`` returns bool [R, V], True for an allowed token.

    Args:
        function: for all rows at once; `Rows.history` has the tokens.
        stage: see `pybeam.processors`.
        can_capture: as in `from_function`.

    Raises:
        TypeError: `function` is no function.
        ValueError: in a step, if the mask has another shape or dtype.
    """
    return AllowedTokens(function, stage, can_capture)
