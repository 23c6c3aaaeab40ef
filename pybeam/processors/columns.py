"""Processors that follow automata: `select` sees a column for each token that may follow, if they are few."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pybeam.backends import Backend, load
from pybeam.backends.torch_automata import AutomatonArrays, StepColumns, column_tokens
from pybeam.contracts import ColumnRules, ColumnTokens
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, Processor


class ColumnProcessor(Processor):
    """A processor whose allowed tokens are the edges of automata; see `pybeam.backends.torch_automata`."""

    gives_columns = True
    takes_slots = True
    # whether columns make up on a GPU for the kernels that they take
    narrows_on_gpu: ClassVar[bool] = True

    @abstractmethod
    def can_narrow(self, eos_ids: Sequence[int], own: Any) -> bool:
        """Whether columns of a request order tokens as the vocabulary does, with EOS where this one puts it.

        `own` is the processor that the request has in place of this one, or this one.
        """

    @abstractmethod
    def columns(
        self,
        backend: Backend,
        logits: Tensor,
        rows: Rows,
        data: tuple[Tensor, ...],
        *,
        are_logits: bool,
    ) -> Columns:
        """Return what may follow each row, and note where the rows are.

        Args:
            backend: whose operators compute it.
            logits: [R, V], or log-probabilities unless `are_logits`.
            rows: the rows.
            data: as for `Processor.__call__`.
            are_logits: whether `logits` are to be normalised.
        """

    @abstractmethod
    def in_steps(self, arrays: Sequence[Tensor], eos_id: int, *, are_logits: bool) -> StepColumns:
        """Return what a program needs to do what `columns` does, step after step.

        Args:
            arrays: the shared parameters and the line [S] int32 of every slot in them, where there are
                some; the parameters of every slot [S, …]; the constants; and the state.
            eos_id: the model's first EOS.
            are_logits: as for `columns`.
        """

    @abstractmethod
    def wanted(self, backend: Backend, rows: Rows, data: tuple[Tensor, ...]) -> Tensor | None:
        """The tokens [U] whose logits `columns` reads, repeated or not; None: all.

        `data` are as for `columns`, on a CPU.
        """

    def spread(
        self,
        backend: Backend,
        logits: Tensor,
        rows: Rows,
        data: tuple[Tensor, ...],
        *,
        are_logits: bool,
    ) -> Tensor:
        """Return the log-probabilities [R, V] of what may follow each row, -inf elsewhere; see `columns`."""
        columns = self.columns(backend, logits, rows, data, are_logits=are_logits)
        return columns.spread(backend.log_softmax(logits) if are_logits else logits, rows)

    def computed(
        self, backend: Backend, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]
    ) -> Tensor:
        return self.spread(backend, logits, rows, data, are_logits=False)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        return self.computed(load("reference"), logits, rows, data)


def places_of(rows: Rows, line: Tensor, state: Tensor) -> tuple[Tensor, ...]:
    """Return what `automaton_walk` is told of rows beside automata, whose lines [S] and states are given."""
    places = rows.row_slot, rows.node, rows.token, rows.position
    return rows.tree.parent, state, *places, line, rows.prefix_length, rows.max_length


class Columns(NamedTuple):
    """The log-probabilities of what may follow each row."""

    log_probs: Tensor  # [R, M + 1]
    arrays: AutomatonArrays
    node: Tensor  # [R] int32, the row's state; -1 outside
    rules: ColumnRules

    @property
    def tokens(self) -> ColumnTokens:
        """Which tokens the columns are."""
        rules = self.rules
        return ColumnTokens(*self.arrays[:2], self.node, rules.eos_id, rules.eos_first)

    def spread(self, log_probs: Tensor, rows: Rows) -> Tensor:
        """Return [R, V] with the columns in their places and -inf elsewhere; `log_probs` within prefixes."""
        width = self.log_probs.shape[1]
        column = torch.arange(width, device=self.node.device)
        token = column_tokens(self.tokens, self.node[:, None], column, width)
        is_inside = (rows.num_generated >= 0)[:, None]
        out = torch.where(is_inside, -INF, log_probs.to(self.log_probs.dtype))
        value = self.log_probs.masked_fill(~is_inside, -INF)
        return out.scatter_reduce_(1, token.long(), value, "amax")
