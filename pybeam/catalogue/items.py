"""`allowed_items`: nothing but the items of a catalogue, with few columns in place of a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.backends import Backend
from pybeam.backends.torch_automata import CatalogueArrays, StepColumns, edges_of
from pybeam.catalogue.catalogue import Catalogue
from pybeam.catalogue.filters import Filter
from pybeam.contracts import ColumnRules, Normalise
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Stage
from pybeam.processors.columns import ColumnProcessor, Columns, places_of


@dataclass(frozen=True)
class AllowedItems(ColumnProcessor):
    catalogue: Catalogue = field(repr=False)
    filter: Filter | None = None
    renormalize: bool = False
    stage: Stage = field(default="log_probs", init=False)
    per_request: ClassVar = ("filter",)
    state: ClassVar = (INT,)
    begins_behind_prefix: ClassVar = True
    allows_cuts: ClassVar = False

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

    @property
    def num_outputs(self) -> int:
        return self.chosen.num_sequences

    def items(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return self.catalogue.items_of(tokens, self.filter)

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

    def can_narrow(self, eos_ids: Sequence[int], own: AllowedItems) -> bool:
        smallest, largest = self.catalogue.token_range
        return not smallest < eos_ids[0] < largest

    def columns(
        self,
        backend: Backend,
        logits: Tensor,
        rows: Rows,
        data: tuple[Tensor, ...],
        *,
        are_logits: bool,
    ) -> Columns:
        """See `ColumnProcessor`.

        `data` are the words [T, 2 * W] of all filters in use; the filter of every slot [S]; the tree's
        tokens and first edges; the nodes [S, N] of all nodes of token trees.
        """
        arrays, here, line = self._walked(backend, rows, data)
        # the host cannot read what a GPU knows
        num_columns = self.catalogue.max_children if logits.is_cuda else 0
        rules = self._rules(rows.eos_id, num_columns, are_logits=are_logits)
        log_probs = backend.automaton_columns(arrays, logits, here, line, rules)
        return Columns(log_probs, arrays, here, rules)

    def in_steps(self, arrays: Sequence[Tensor], eos_id: int, *, are_logits: bool) -> StepColumns:
        words, line, token, first, state = arrays
        rules = self._rules(eos_id, 0, are_logits=are_logits)
        return StepColumns(CatalogueArrays(token, first, words), line, state, rules)

    def _rules(self, eos_id: int, num_columns: int, *, are_logits: bool) -> ColumnRules:
        normalise = Normalise.VOCABULARY if are_logits else Normalise.NOTHING
        if self.renormalize:
            normalise = Normalise.COLUMNS
        eos_first = eos_id < self.catalogue.token_range[0]
        return ColumnRules(eos_id, eos_first, num_columns, normalise)

    def _walked(
        self, backend: Backend, rows: Rows, data: tuple[Tensor, ...]
    ) -> tuple[CatalogueArrays, Tensor, Tensor]:
        """Go on to the nodes [R] of the rows, and note them; the last are the filters [R]."""
        words, line, token, first, state = data
        arrays = CatalogueArrays(token, first, words)
        here, own = backend.automaton_walk(arrays, *places_of(rows, line, state))
        return arrays, here, own

    def wanted(self, backend: Backend, rows: Rows, data: tuple[Tensor, ...]) -> Tensor | None:
        if not self.renormalize:
            return None
        arrays, here, _ = self._walked(backend, rows, data)
        begin, end = edges_of(arrays, here)
        num = end - begin
        behind = num.cumsum(0)
        # edges of each row, one after another
        edge = torch.arange(int(num.sum())) + (end - behind).repeat_interleave(num)
        eos = torch.tensor([rows.eos_id], dtype=INT)
        return torch.cat((arrays.token[edge], eos))


def allowed_items(
    catalogue: Catalogue, filter: Filter | None = None, *, renormalize: bool = False
) -> AllowedItems:
    """Allow nothing but the items of a catalogue, each followed by EOS, and return their ids.

    A token is allowed if an item of the catalogue, and of the filter, begins with the tokens behind the
    forced prefix and this token. The model's first EOS is allowed behind a whole item. So every row can go on
    to an item. `Hypothesis.items` are the ids of the items that have the hypothesis's tokens, and
    `Result.has_all_items` says whether there are no others than those found. No output comes twice. If all
    items have n tokens, ``max_length=n`` leaves EOS out; hypotheses are then cut there.

    Stage "log_probs". Per request: the filter. A step looks at the tokens that may follow a row, and at the
    others only to normalise.

    transformers does the same with prefix_allowed_tokens_fn over a trie, row by row; its renormalize_logits
    is `renormalize`.

    Args:
        catalogue: a `pybeam.Catalogue`.
        filter: from `Catalogue.filter`; None: all items are allowed.
        renormalize: whether log-probabilities sum to 1 over the tokens that are allowed, and not over the
            vocabulary.

    Raises:
        TypeError, ValueError: `catalogue` is none, or the filter is of another one. With a decoder: the
            catalogue holds EOS or tokens that the model lacks. With a request: its `max_length` is less than
            the longest item and EOS take, or its `min_length` more than the shortest item has.

    See De Cao et al. 2021 (GENRE); Rajput et al. 2023 (TIGER).
    """
    return AllowedItems(catalogue, filter, renormalize)
