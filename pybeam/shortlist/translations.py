"""`allowed_translations`: outputs of a source consist of its own shortlist, with a column for each token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError, flag
from pybeam.backends import Backend
from pybeam.backends.torch_automata import CatalogueArrays, StepColumns
from pybeam.contracts import ColumnRules, Normalise
from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INT, Stage
from pybeam.processors.columns import ColumnProcessor, Columns
from pybeam.shortlist.shortlist import Shortlist

# there are edges behind the node of every slot
LEAST_WIDTH = 2
WORD = 32
NO_TOKENS = torch.zeros(0, dtype=INT)


@dataclass(frozen=True)
class AllowedTranslations(ColumnProcessor):
    """A slot's list is a tree of one level: its root is node 2s of the slot s, its edges are the tokens."""

    shortlist: Shortlist
    tokens: Tensor = field(default=NO_TOKENS, repr=False, compare=False)
    by_source: bool = True
    stage: Stage = field(default="log_probs", init=False)
    per_request: ClassVar = ("shortlist", "tokens", "by_source")

    def __post_init__(self) -> None:
        if not isinstance(self.shortlist, Shortlist):
            raise TypeError(f"`shortlist` must be a pybeam.Shortlist, but is {self.shortlist!r}")
        flag("by_source", self.by_source)

    def parameters(self) -> tuple[Tensor, ...]:
        num, width = len(self.tokens), max(len(self.tokens), LEAST_WIDTH)
        token = torch.full((width,), -1, dtype=INT)
        token[:num] = self.tokens
        # the place of the last token; nothing is -1 where there is no source
        return token, torch.tensor(num - 1, dtype=INT)

    def check(self, model: Model) -> None:
        if model.takes_features:
            raise ArgumentError(
                "shortlist", "needs sources of token ids, but the model reads features of sound"
            )
        self.shortlist.check(model.vocab_size, model.eos_ids)

    def of_source(self, content: Any, prefix: Sequence[int]) -> AllowedTranslations:
        """Return the one with the list of this source."""
        if not self.by_source:
            return self
        if isinstance(content, tuple) and content and not isinstance(content[0], Integral):
            # members of an ensemble read the same ids
            content = content[0]
        tokens = torch.from_numpy(self.shortlist.listed(content))
        return dataclasses.replace(self, tokens=tokens, by_source=False)

    def can_narrow(self, eos_ids: Sequence[int], own: AllowedTranslations) -> bool:
        eos_id = eos_ids[0]
        # ascending
        ends = own.tokens[:1].tolist() + own.tokens[-1:].tolist()
        eos_first = self.shortlist.is_behind(eos_id)
        return self.shortlist.is_on_one_side(eos_id) and all(
            (token > eos_id) == eos_first for token in ends
        )

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

        `data` are the lists [S, L] of all slots, and the place [S] of the last token of each.
        """
        token, last = data
        arrays = _trees(token, last)
        # the host cannot read what a GPU knows
        rules = self._rules(rows.eos_id, token.shape[1] if logits.is_cuda else 0)
        node, line = 2 * rows.row_slot, torch.zeros_like(rows.row_slot)
        log_probs = backend.automaton_columns(arrays, logits, node, line, rules)
        return Columns(log_probs, arrays, node, rules)

    def in_steps(self, arrays: Sequence[Tensor], eos_id: int, *, are_logits: bool) -> StepColumns:
        token, last = arrays
        slot = torch.arange(len(last), dtype=INT)
        rules = self._rules(eos_id, 0)
        return StepColumns(_trees(token, last), torch.zeros_like(slot), 2 * slot, rules)

    def _rules(self, eos_id: int, num_columns: int) -> ColumnRules:
        return ColumnRules(
            eos_id, self.shortlist.is_behind(eos_id), num_columns, normalise=Normalise.COLUMNS
        )

    def wanted(self, backend: Backend, rows: Rows, data: tuple[Tensor, ...]) -> Tensor | None:
        return None


def _trees(token: Tensor, last: Tensor) -> CatalogueArrays:
    """Return the trees of lists [S, L], whose last tokens have these places [S]."""
    num_slots, width = token.shape
    begin = torch.arange(num_slots, dtype=INT, device=token.device) * width
    # the rest of a line, up to the next one, is the edges of a node where nobody is
    first = torch.stack((begin, begin + last + 1), 1).view(-1)  # [2 * S]
    words = -(-(token.numel() + 1) // WORD)
    # nobody reads the rest of a line, but places without an edge are looked up
    return CatalogueArrays(token.view(-1).clamp(min=0), first, token.new_full((1, 2 * words), -1))


def allowed_translations(shortlist: Shortlist) -> AllowedTranslations:
    """Allow each source nothing but its shortlist and EOS, and normalise over them.

    The list of a source is `always`, and the target tokens of every rule whose tokens the source holds.
    Behind the forced prefix, tokens of the list and EOS have ``log_softmax`` over the list and EOS alone; all
    others have -inf. Within a scored prefix every token has its probability over the vocabulary. Each source
    has a list of its own, whatever else is in its batch; Marian and CTranslate2 take the union of a batch.

    Stage "log_probs". Per request: the shortlist. As the last processor, where EOS is less than all ids of
    the lists or greater, a step selects among the columns of the lists. A request whose own list has ids on
    the other side of EOS ends that from then on, which changes no result. On a CPU, where steps follow one
    another natively and this is the only processor, a transformer computes the columns of the lists alone.
    They are packed when a source begins, and take n times the bytes of a column for a list of n tokens.

    Args:
        shortlist: a `pybeam.Shortlist`.

    Raises:
        TypeError: it is none. With a decoder, ValueError: it holds EOS or tokens that the model lacks, the
            model has several EOS, or its sources are no token ids.

    See Jean et al. 2015, section 3; Junczys-Dowmunt et al. 2018 (Marian on CPUs).
    """
    return AllowedTranslations(shortlist)
