"""Processors that allow some tokens only: those of a trie of sequences, or of a function's mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.models.base import Model
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor, Stage, check_ids, check_stage, lists_of_ids

ROOT = 0


class Trie(NamedTuple):
    """Sequences as a tree, numbered by depth and, within it, in lexical order.

    Edge e leads to node e + 1. The last node stands for all that is in no sequence.
    """

    token: Tensor  # [E] int64, of every edge; ascending among those of one node
    first: Tensor  # [nodes + 1] int64, edges of node n are first[n] .. first[n + 1]
    is_end: Tensor  # [nodes] bool, a sequence ends here
    key: Tensor  # [E] int64, ascending: the node an edge leaves, then its token

    @classmethod
    def build(cls, sequences: tuple[tuple[int, ...], ...]) -> Trie:
        longest = max(map(len, sequences))
        padded = np.full((len(sequences), longest), -1, dtype=np.int64)
        for line, sequence in zip(padded, sequences, strict=True):
            line[: len(sequence)] = sequence
        padded = np.unique(padded, axis=0)  # sorted; -1 comes first
        node = np.zeros(len(padded), dtype=np.int64)  # each sequence's node at the present depth
        differs = np.zeros(len(padded), dtype=bool)  # from the one before
        differs[0] = True
        parents, tokens = [], []
        num_nodes = 1
        for depth in range(longest):
            token = padded[:, depth]
            differs[1:] |= token[1:] != token[:-1]
            has_token = token >= 0
            is_new = differs & has_token
            parents.append(node[is_new])
            tokens.append(token[is_new])
            node = np.where(has_token, num_nodes - 1 + np.cumsum(is_new), node)
            num_nodes += int(is_new.sum())
        parent, token = np.concatenate(parents), np.concatenate(tokens)
        is_end = np.zeros(num_nodes + 1, dtype=bool)
        is_end[node] = True
        first = np.searchsorted(parent, np.arange(num_nodes + 2))
        arrays = token, first, is_end, parent << 32 | token
        return cls(*[torch.from_numpy(array) for array in arrays])

    def child(self, node: Tensor, token: Tensor) -> Tensor:
        """Return the nodes that tokens [R] lead to from these nodes [R]."""
        key = node.long() << 32 | token.long()
        edge = torch.searchsorted(self.key, key)
        is_there = self.key[edge.clamp(max=self.key.numel() - 1)] == key
        return torch.where(is_there, edge + 1, self.is_end.numel() - 1)

    def children(self, node: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Return tokens [R, most] that may follow these nodes [R], and a mask of those that exist."""
        edge = self.first[node, None] + torch.arange(most, device=node.device)
        is_there = edge < self.first[node + 1, None]
        return self.token[edge.clamp(max=self.token.numel() - 1)], is_there


@dataclass(frozen=True)
class AllowedSequences(Processor):
    sequences: tuple[tuple[int, ...], ...] = field(repr=False)
    stage: Stage = "logits"
    state: ClassVar = (INT,)
    begins_behind_prefix: ClassVar = True

    def __post_init__(self) -> None:
        check_stage(self.stage)
        if not self.sequences:
            raise ValueError("`sequences` must hold at least one, but is empty")
        if not all(self.sequences):
            raise ValueError("`sequences` must not hold an empty one; leave it out")

    @cached_property
    def _built(self) -> tuple[Trie, int]:
        """The trie, and how many tokens may follow a node at most; made by `constants`, before any step."""
        trie = Trie.build(self.sequences)
        return trie, int(trie.first.diff().max())

    def constants(self) -> tuple[Tensor, ...]:
        return self._built[0]

    def check(self, model: Model) -> None:
        tokens = self._built[0].token.tolist()
        check_ids("sequences", tokens, model)
        held = set(tokens).intersection(model.eos_ids)
        if held:
            raise ValueError(
                f"`sequences` must not hold EOS ({min(held)}), which may follow the last token of "
                "each; leave it out"
            )

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        *constants, state = data
        _, max_children = self._built
        trie = Trie(*constants)
        slot, node = rows.row_slot.long(), rows.node.long()
        parent = rows.tree.parent[slot, node].long()
        before = state[slot, parent.clamp(min=0)]
        # sequences begin behind the forced prefix
        here = torch.where(rows.num_generated > 0, trie.child(before, rows.token), ROOT)  # [R]
        state[slot, node] = here.to(INT)
        token, is_there = trie.children(here, max_children)  # [R, most]
        value = logits.gather(1, token).masked_fill(~is_there, -INF)
        allowed = torch.full_like(logits, -INF).scatter_reduce_(1, token, value, "amax")
        is_inside = ~trie.is_end[here]
        for eos_id in rows.eos_ids:
            allowed[:, eos_id] = logits[:, eos_id].masked_fill(is_inside, -INF)
        return torch.where(rows.num_generated[:, None] < 0, logits, allowed)


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


def allowed_sequences(
    sequences: Iterable[Iterable[int]], *, stage: Stage = "logits"
) -> AllowedSequences:
    """Allow nothing but these sequences, each followed by EOS.

    A token is allowed if some sequence begins with the tokens behind the forced prefix and this token. EOS is
    allowed behind a whole sequence. A hypothesis that is cut at `max_length` may be only the beginning of a
    sequence.

    transformers does the same with prefix_allowed_tokens_fn over a trie, row by row. Here every row carries
    its place in the trie along the token tree. A step costs the number of rows times the most children of a
    node of the trie.

    Args:
        sequences: lists of ids without EOS, none of them empty.
        stage: see `pybeam.processors`.

    Raises:
        TypeError, ValueError: they are no lists of token ids, one is empty, or there is none.

    See De Cao et al. 2021 (GENRE).
    """
    return AllowedSequences(lists_of_ids("sequences", sequences), stage)


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
