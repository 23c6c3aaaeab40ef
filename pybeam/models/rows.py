"""`Rows`: the partial hypotheses that move in one step, as models and processors see them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pybeam.kvcache.token_tree import TokenTree


# not frozen, because a frozen one takes twice as long to make, and every step makes one
@dataclass(eq=False)
class Rows:
    """The rows that move in one step, grouped by source. R rows of A sources.

    Rows behind the last offset are padding, of slot 0, which belongs to no source. Nobody looks at what a
    session computes for them. Sources may have no row. Slot 0 may come many times.
    """

    tree: TokenTree
    slot: Tensor  #: [A] int32, place of each source
    offset: Tensor  #: [A + 1] int32, rows of the a-th source are offset[a] .. offset[a + 1]
    token: Tensor  #: [R] int32, last token of each row
    position: Tensor  #: [R] int32, tokens before it, so 0 for the start token
    row_slot: Tensor  #: [R] int32, place of each row's source
    entry: Tensor  #: [R] int32, the row's entry in its beam: its bit in the tree's masks
    node: Tensor  #: [R] int32, its node in the tree
    cell: Tensor  #: [R] int32, the cell its key and value go to; -1 for padding
    longest: int  #: no row has more tokens, start included
    prefix_length: Tensor  #: [S] int32, by slot: tokens of the prefix, scored or not
    max_length: Tensor  #: [S] int32, by slot: generated tokens, EOS included, at which rows are cut
    min_length: Tensor  #: [S] int32, by slot: generated tokens before which EOS is banned
    eos_ids: tuple[int, ...]  #: see `Model.eos_ids`
    beam_score: Tensor | None = None  #: [S, K] float32, by slot and entry: what ranks it
    #: [S, P] int32, by slot: `Model.prompt`, padded with -1 on the left; kept where there are processors
    prompt: Tensor | None = None
    #: [U] int32, the only tokens whose logits anybody reads; a session may leave out others. None: all are
    wanted: Tensor | None = None
    #: gives `SelectInputs` of the step, where log-probabilities rank the rows of a beam
    inputs: Callable[[], Sequence[Tensor]] | None = None

    @property
    def eos_id(self) -> int:
        """The first of `eos_ids`, the only one of most models."""
        return self.eos_ids[0]

    def take(self, index: Tensor, is_one: Tensor) -> Rows:
        """Return rows `index` [n] as n sources of one row each, and padding where not `is_one` [n]."""

        def pick(values: Tensor, padding: int = 0) -> Tensor:
            return torch.where(is_one, values.index_select(0, index), padding)

        row_slot = pick(self.row_slot)
        return dataclasses.replace(
            self,
            slot=row_slot,
            offset=torch.arange(index.numel() + 1, dtype=torch.int32, device=index.device),
            token=pick(self.token),
            position=pick(self.position),
            row_slot=row_slot,
            entry=pick(self.entry),
            node=pick(self.node),
            cell=pick(self.cell, -1),
        )

    @cached_property
    def history(self) -> Tensor:
        """The tokens of every row, start token first: [R, T] int32, padded with -1 on the right.

        T is the room in the token tree, which a captured step has as a constant. (`longest` may be less, but
        changes from step to step.)
        """
        return self.tree.paths(self.row_slot, self.node)

    def seen(self, counts_start: bool) -> tuple[Tensor, Tensor]:
        """Return every row's tokens [R, T] int32 as processors count them, and the last one's place [R].

        Places without a token hold something negative; there is none behind the last one.

        Args:
            counts_start: whether what hypotheses start from counts: the prompt (`Model.prompt`) where
                there is one, else the start token.
        """
        if not counts_start:
            return self.history[:, 1:], self.position - 1
        if self.prompt is None or not self.prompt.shape[1]:
            return self.history, self.position
        prompt = self.prompt.index_select(0, self.row_slot)  # [R, P]
        last = self.position + (prompt.shape[1] - 1)
        return torch.cat((prompt, self.history[:, 1:]), 1), last

    @cached_property
    def num_generated(self) -> Tensor:
        """[R] int32, tokens behind the prefix, scored or not; negative within it."""
        return self.position - self.prefix_length.index_select(0, self.row_slot)

    @cached_property
    def is_last(self) -> Tensor:
        """[R] bool, the next token is the last one there is room for."""
        return self.num_generated + 1 == self.max_length.index_select(0, self.row_slot)

    @property
    def score(self) -> Tensor:
        """[R] float32, the accumulated score of every row."""
        assert self.beam_score is not None
        return self.beam_score[self.row_slot.long(), self.entry.long()]
