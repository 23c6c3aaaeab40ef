"""The contract between the search and what it searches: `Model`, `Session`, `Rows`.

A `Model` is weights and facts, shared by everyone. A `Session` is the state of one decode call:
it encodes sources, steps rows and forgets sources. Keys and values never move on a beam step: the
session writes each node's once into its cell (see `pybeam.token_tree`) and attends through masks.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pybeam.token_tree import TokenTree


@dataclass(frozen=True)
class Rows:
    """The rows that move in one step, grouped by source. R rows of A sources.

    Rows behind the last offset are padding, of slot 0, which is nobody's; what a session computes for
    them is not looked at. Sources may have no row, slot 0 among them, many times.
    """

    tree: TokenTree
    slot: Tensor  # [A] int32, place of each source
    offset: Tensor  # [A + 1] int32, rows of the a-th source are offset[a] .. offset[a + 1]
    token: Tensor  # [R] int32, last token of each row
    position: Tensor  # [R] int32, tokens before it, so 0 for the start token
    row_slot: Tensor  # [R] int32, place of each row's source
    bit: Tensor  # [R] int32, the row's entry in its beam: its bit in the tree's masks
    node: Tensor  # [R] int32, its node in the tree
    cell: Tensor  # [R] int32, the cell its key and value go to; -1 for padding
    longest: int  # no row has more tokens, start included
    prefix_length: Tensor  # [S] int32, by slot: forced tokens behind the start token
    max_length: Tensor  # [S] int32, by slot: generated tokens, EOS included, at which rows are cut
    eos_ids: tuple[int, ...]  # see `Model.eos_ids`
    beam_score: Tensor | None = None  # [S, K] float32, by slot and entry: what ranks it
    # [S, P] int32, by slot: `Model.prompt`, padded with -1 on the left; kept where there are processors
    prompt: Tensor | None = None

    @property
    def eos_id(self) -> int:
        """The first of `eos_ids`, the only one of most models."""
        return self.eos_ids[0]

    def picked(self, index: Tensor, is_one: Tensor) -> Rows:
        """Rows `index` [n] as n sources of one row each; padding where not `is_one` [n]."""

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
            bit=pick(self.bit),
            node=pick(self.node),
            cell=pick(self.cell, -1),
        )

    @cached_property
    def history(self) -> Tensor:
        """The tokens of every row, start token first: [R, T] int32, padded with -1 on the right.

        T is what the token tree has room for. It changes only when arrays are replaced, so that a step
        which reads this may be captured; `longest` may be less, but is a constant to a captured step.
        """
        return self.tree.paths(self.row_slot, self.node)

    def seen(self, counts_start: bool) -> tuple[Tensor, Tensor]:
        """What processors take for a row's tokens, [R, T] int32, and the place of the last one, [R] int32.

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
        """[R] int32, tokens behind the forced prefix; negative within it."""
        return self.position - self.prefix_length.index_select(0, self.row_slot)

    @cached_property
    def is_last(self) -> Tensor:
        """[R] bool, the next token is the last one there is room for."""
        return self.num_generated + 1 == self.max_length.index_select(0, self.row_slot)

    @property
    def score(self) -> Tensor:
        """[R] float32, the accumulated score of every row."""
        return self.beam_score[self.row_slot.long(), self.bit.long()]


@dataclass(frozen=True)
class Alignment:
    """Which cross-attention aligns an output with its source: the mean over heads of one decoder layer.

    Args:
        layer: counted from 0, or from the end if it is negative; the default is the last one.
        heads: those that are averaged; None: all. CTranslate2's default is ``heads=[0]``.

    Raises:
        TypeError, ValueError: they are no ints, or no heads.
    """

    layer: int = -1
    heads: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.heads is not None and not isinstance(self.heads, Sequence):
            raise TypeError(f"`heads` must be a list of ints, but is {self.heads!r}")
        heads = () if self.heads is None else tuple(self.heads)
        for name, value in [("layer", self.layer), *(("heads", head) for head in heads)]:
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"`{name}` must be given as ints, but there is {value!r}")
        if self.heads is not None:
            if not heads or min(heads) < 0:
                raise ValueError(f"`heads` must be at least one, from 0 on, but is {self.heads!r}")
            object.__setattr__(self, "heads", heads)


class Session(ABC):
    """The state of one decode call at a time. Slots are given out by the engine."""

    def buffers(self) -> Sequence[Tensor]:
        """Tensors kept between steps, which a captured step refers to until one is replaced."""
        return ()

    def most_bytes(self, num_cells: int, source_length: int) -> int:
        """Device memory that a source with so many cells of its own needs at most."""
        return 0

    @abstractmethod
    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        """Make room for that many sources, rows per source and cells; grows, never shrinks."""

    @abstractmethod
    def encode(self, sources: Sequence, indices: Sequence[int], slots: Sequence[int]) -> None:
        """Encode sources and keep what decoding them needs under their slots.

        `sources` are as the model's `check` returned them, `indices` their positions in the list
        of requests, or `Request.source_id`.
        """

    @abstractmethod
    def step(self, rows: Rows) -> Tensor:
        """Logits [R, V] of the next token of every row.

        The caller may overwrite them, and so may the next step. State per row is that before a step until
        `advance`: the same step done again gives the same.
        """

    @abstractmethod
    def release(self, slots: Sequence[int]) -> None:
        """Forget these sources; their slots will be used again."""

    def attention(
        self,
        sources: Sequence,
        hypotheses: Sequence[Sequence[Sequence[int]]],
        alignment: Alignment,
    ) -> list[list[Tensor]]:
        """Attention over each of these sources while each of its hypotheses is made; see `has_attention`.

        `sources` are as the model's `check` returned them, hypotheses ids without start token and EOS. For
        each [tokens + 1, E] float32 on the host: row t is that of the step whose logits gave token t, the
        last row that of the step behind the last token. Every row sums to 1.
        """
        raise NotImplementedError(f"a {type(self).__name__} has no attention")

    def advance(self, source: Tensor, target: Tensor) -> None:
        """Per-row state follows its hypothesis: entry `target[i]` continues old entry `source[i]`.

        Both [n] int32, numbering entries as ``slot * width + entry``; -1: no such row. Sessions that
        keep all state in cells need nothing here.
        """


class Model(ABC):
    """What the engine may know about a model."""

    vocab_size: int
    start_id: int  # the token every hypothesis starts from; not part of the output
    eos_id: int
    other_eos_ids: tuple[int, ...] = ()  # more tokens that end a hypothesis
    max_positions: int | None  # positions of the decoder, None for no limit
    device: torch.device
    pad_id: int | None = None  # what stands for no token, if there is one
    # whether a step may have rows that continue each other: not where state moves with rows (`advance`),
    # nor where a row sees none of its own step
    can_draft = True
    # whether a step may be captured in a CUDA graph: no sizes that depend on data, nothing read back
    can_capture = False
    has_attention = False  # whether its sessions have `attention`
    takes_features = False  # whether sources are features of sound, not token ids

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """All tokens that end a hypothesis, `eos_id` first."""
        return (self.eos_id, *self.other_eos_ids)

    @abstractmethod
    def session(self, backend) -> Session:
        """A fresh session that computes with this backend module."""

    @abstractmethod
    def check(self, source) -> object:
        """The source as `Session.encode` wants it; raises ValueError or TypeError if unfit."""

    def check_alignment(self, alignment: Alignment) -> None:
        """Raises ValueError if there is no such attention."""
        if not self.has_attention:
            raise ValueError(
                f"attention needs a model that has it, but a {type(self).__name__} has none; leave "
                "`alignment` and `coverage` out"
            )

    @abstractmethod
    def source_length(self, source) -> int:
        """|x| of a checked source, by which the queue is sorted and rewards are counted."""

    def prompt(self, source) -> Tensor | None:
        """Tokens of this checked source that hypotheses go on from, [P] int32 on the host.

        The start token stands for the last of them, and processors that count the start count them all.
        Numbers outside the vocabulary are negative. None: there are none.
        """
        return None

    def room(self, source) -> int | None:
        """Positions that a hypothesis of this checked source may take, None for no limit."""
        return self.max_positions
