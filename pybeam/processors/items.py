"""`AllowedItems`: nothing but the items of a catalogue, with few columns in place of a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.backends import Backend, load
from pybeam.backends.arrays import CatalogueArrays
from pybeam.backends.torch_catalogue import catalogue_token, edges_of
from pybeam.catalogue.catalogue import ROOT, Catalogue
from pybeam.catalogue.filters import Filter
from pybeam.contracts import ColumnRules, Normalise, Survivors
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor, Stage


@dataclass(frozen=True)
class AllowedItems(Processor):
    catalogue: Catalogue = field(repr=False)
    filter: Filter | None = None
    renormalize: bool = False
    stage: Stage = field(default="log_probs", init=False)
    per_request: ClassVar = ("filter",)
    state: ClassVar = (INT,)
    begins_behind_prefix: ClassVar = True

    def __post_init__(self) -> None:
        if not isinstance(self.catalogue, Catalogue):
            raise TypeError(f"`catalogue` must be a pybeam.Catalogue, but is {self.catalogue!r}")
        if self.filter is None:
            return
        if not isinstance(self.filter, Filter):
            raise TypeError(f"`filter` must come from Catalogue.filter, but is {self.filter!r}")
        if self.filter.catalogue is not self.catalogue:
            raise ValueError(
                "`filter` must be one of this catalogue, but is one of another; make it with "
                "`catalogue.filter`"
            )

    @property
    def chosen(self) -> Filter:
        """The filter, or that of all items."""
        return self.catalogue.everything if self.filter is None else self.filter

    def shared(self) -> Tensor:
        return self.chosen.words

    def constants(self) -> tuple[Tensor, ...]:
        return self.catalogue.tensors

    def check(self, model: Model) -> None:
        largest = self.catalogue.token_range[1]
        if largest >= model.vocab_size:
            raise ArgumentError(
                "catalogue",
                f"must hold ids of the model's vocabulary, 0 to {model.vocab_size - 1}, but holds "
                f"{largest}; was it built with this model's tokenizer?",
            )
        for eos_id in model.eos_ids:
            if self.catalogue.has_token(eos_id):
                raise ArgumentError(
                    "catalogue",
                    f"must not hold EOS ({eos_id}), which follows the last token of each item; leave it out",
                )

    @property
    def longest_output(self) -> int:
        return self.catalogue.longest + 1

    def check_lengths(self, min_length: int, max_length: int) -> None:
        catalogue = self.catalogue
        if min_length > catalogue.shortest:
            raise ArgumentError(
                "min_length",
                f"must be at most {catalogue.shortest}, the tokens of the shortest item, but is "
                f"{min_length}; leave short items out with a filter",
            )
        has_one_length = catalogue.shortest == catalogue.longest
        if max_length <= catalogue.longest and not (
            has_one_length and max_length == catalogue.longest
        ):
            raise ArgumentError(
                "max_length",
                f"must be at least {catalogue.longest + 1}, the tokens of the longest item and EOS, but is "
                f"{max_length}; a search that is cut earlier would end within items",
            )

    def can_narrow(self, eos_id: int) -> bool:
        """Whether columns order tokens as the vocabulary does, wherever EOS stands."""
        smallest, largest = self.catalogue.token_range
        return not smallest < eos_id < largest

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
            data: words [T, 2 * W] of all filters in use; the filter of every row [R]; the tree's tokens and
                first edges; the nodes [S, N] of all nodes of token trees.
        """
        arrays, here = self._walked(backend, rows, data)
        normalise = Normalise.VOCABULARY if are_logits else Normalise.NOTHING
        rules = ColumnRules(
            rows.eos_id,
            eos_first=rows.eos_id < self.catalogue.token_range[0],
            # the host cannot read what a GPU knows
            num_columns=self.catalogue.max_children if logits.is_cuda else 0,
            normalise=Normalise.COLUMNS if self.renormalize else normalise,
        )
        log_probs = backend.catalogue_columns(arrays, logits, here, data[1], rules)
        return Columns(log_probs, arrays, here, rules)

    def _walked(
        self, backend: Backend, rows: Rows, data: tuple[Tensor, ...]
    ) -> tuple[CatalogueArrays, Tensor]:
        """Go on to the nodes [R] of the rows, and note them."""
        words, _, token, first, state = data
        arrays = CatalogueArrays(token, first, words)
        slot, node = rows.row_slot.long(), rows.node.long()
        parent = rows.tree.parent[slot, node].long().clamp(min=0)
        here = backend.catalogue_child(arrays, state[slot, parent], rows.token)
        # items begin behind the prefix
        here = torch.where(rows.num_generated > 0, here, ROOT)
        state[slot, node] = here
        return arrays, here

    def wanted(self, backend: Backend, rows: Rows, data: tuple[Tensor, ...]) -> Tensor | None:
        """The tokens [U] whose logits `columns` reads, repeated or not; None: all.

        `data` are as for `columns`, on a CPU.
        """
        if not self.renormalize:
            return None
        arrays, here = self._walked(backend, rows, data)
        begin, end = edges_of(arrays, here)
        num = end - begin
        behind = num.cumsum(0)
        # edges of each row, one after another
        edge = torch.arange(int(num.sum())) + (end - behind).repeat_interleave(num)
        eos = torch.tensor([rows.eos_id], dtype=INT)
        return torch.cat((arrays.token[edge], eos))

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        columns = self.columns(load("reference"), logits, rows, data, are_logits=False)
        return columns.spread(logits, rows)


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
        width = self.log_probs.shape[1]
        column = torch.arange(width, device=self.node.device)
        token = catalogue_token(self.arrays, self.node[:, None], column, self.rules, width)
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
        slot, parent = (
            rows.slot.long()[:, None],
            chosen.parent.clamp(min=0).long(),
        )  # [A, 1], [A, C]
        node_of = torch.zeros(is_alive.shape, dtype=INT, device=slot.device)
        node_of[rows.row_slot.long(), rows.entry.long()] = self.node
        width = self.log_probs.shape[1]
        token = catalogue_token(
            self.arrays, node_of[slot, parent], chosen.token, self.rules, width
        ).to(INT)
        if forced is not None:
            token = torch.where(forced[:, None] >= 0, forced[:, None], token)
        return chosen._replace(token=torch.where(chosen.token < 0, -1, token))
