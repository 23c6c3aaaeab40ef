"""Processors that allow so few tokens that `select` sees a column for each, in place of the vocabulary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.arrays import CatalogueArrays, StepColumns
from pybeam.contracts import ColumnRules, ColumnTokens
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, Processor


class ColumnProcessor(Processor):
    """A processor whose allowed tokens are the edges of a tree; see `pybeam.catalogue.items`."""

    gives_columns = True

    @abstractmethod
    def can_narrow(self, eos_id: int, own: Any) -> bool:
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
        """Return what may follow each row, and note where the rows are in the tree.

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
            arrays: the shared parameters [T, n] and the line [S] int32 of every slot, where there are some;
                the parameters of every slot [S, …]; the constants; and the state.
            eos_id: the model's first EOS.
            are_logits: as for `columns`.
        """

    @abstractmethod
    def wanted(self, backend: Backend, rows: Rows, data: tuple[Tensor, ...]) -> Tensor | None:
        """The tokens [U] whose logits `columns` reads, repeated or not; None: all.

        `data` are as for `columns`, on a CPU.
        """


class Columns(NamedTuple):
    """The log-probabilities of what may follow each row."""

    log_probs: Tensor  # [R, M + 1]
    arrays: CatalogueArrays
    node: Tensor  # [R] int32, the row's node in the catalogue's tree; -1 outside
    rules: ColumnRules

    @property
    def tokens(self) -> ColumnTokens:
        """Which tokens the columns are."""
        rules = self.rules
        return ColumnTokens(*self.arrays[:2], self.node, rules.eos_id, rules.eos_first)

    def spread(self, log_probs: Tensor, rows: Rows) -> Tensor:
        """Return [R, V] with the columns in their places and -inf elsewhere; `log_probs` within prefixes."""
        # few searches have columns
        from pybeam.backends.torch_catalogue import column_tokens

        width = self.log_probs.shape[1]
        column = torch.arange(width, device=self.node.device)
        token = column_tokens(self.tokens, self.node[:, None], column, width)
        is_inside = (rows.num_generated >= 0)[:, None]
        out = torch.where(is_inside, -INF, log_probs.to(self.log_probs.dtype))
        value = self.log_probs.masked_fill(~is_inside, -INF)
        return out.scatter_reduce_(1, token.long(), value, "amax")
