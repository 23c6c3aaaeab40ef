"""Processors that allow so few tokens that `select` sees a column for each, in place of the vocabulary."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.arrays import CatalogueArrays
from pybeam.contracts import ColumnRules, Survivors
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor


class ColumnProcessor(Processor):
    """A processor whose allowed tokens are the edges of a tree; see `pybeam.catalogue.items`."""

    @abstractmethod
    def can_narrow(self, eos_id: int) -> bool:
        """Whether columns order tokens as the vocabulary does, wherever EOS stands."""

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
    def eos_column(self) -> int:
        return 0 if self.rules.eos_first else self.log_probs.shape[1] - 1

    @property
    def other_column(self) -> int:
        """A column that is not that of EOS."""
        return self.log_probs.shape[1] - 1 - self.eos_column

    def spread(self, log_probs: Tensor, rows: Rows) -> Tensor:
        """Return [R, V] with the columns in their places and -inf elsewhere; `log_probs` within prefixes."""
        column = torch.arange(self.log_probs.shape[1], device=self.node.device)
        token = self._tokens(self.node[:, None], column)
        is_inside = (rows.num_generated >= 0)[:, None]
        out = torch.where(is_inside, -INF, log_probs.to(self.log_probs.dtype))
        value = self.log_probs.masked_fill(~is_inside, -INF)
        return out.scatter_reduce_(1, token.long(), value, "amax")

    def survivors(
        self, chosen: Survivors, rows: Rows, is_alive: Tensor, forced: Tensor | None
    ) -> Survivors:
        """Return the survivors of `select` among the columns, with tokens in place of columns.

        `is_alive` [S, K] says which entries of the beams are rows. `forced` [A] are tokens of prefixes, or
        -1; `select` was given `other_column` for each.
        """
        if not self.node.shape[0]:
            return chosen  # nothing moves
        # [A, 1], [A, C]
        slot, parent = rows.slot.long()[:, None], chosen.parent.clamp(min=0).long()
        node_of = torch.zeros(is_alive.shape, dtype=INT, device=slot.device)
        node_of[rows.row_slot.long(), rows.entry.long()] = self.node
        token = self._tokens(node_of[slot, parent], chosen.token).to(INT)
        if forced is not None:
            token = torch.where(forced[:, None] >= 0, forced[:, None], token)
        return chosen._replace(token=torch.where(chosen.token < 0, -1, token))

    def _tokens(self, node: Tensor, column: Tensor) -> Tensor:
        """The tokens [...] of these columns of rows at these nodes."""
        # few searches have columns
        from pybeam.backends.torch_catalogue import catalogue_token

        return catalogue_token(self.arrays, node, column, self.rules, self.log_probs.shape[1])
