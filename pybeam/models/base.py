"""The contract between the search and what it searches: `Model`, `Session`, `Rows`.

A `Model` is weights and facts, shared by everyone. A `Session` is the state of one decode call:
it encodes sources, steps rows and forgets sources. Keys and values never move on a beam step: the
session writes each node's once into its cell (see `pybeam.kvcache.token_tree`) and attends through masks.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.layer_program import LayerCall
from pybeam.contracts import Survivors
from pybeam.models.rows import Rows
from pybeam.models.settings import Settings

# Positions that an encoder reads at once, padding included. They are enough for large matrix products and
# few enough for memory: an inner layer with 4096 columns takes 64 MiB.
MAX_ENCODER_TOKENS = 4096


@dataclass(frozen=True)
class Alignment:
    """The cross-attention that aligns an output with its source: the mean over heads of a decoder layer.

    Args:
        layer: counted from 0, or from the end if it is negative; the default is the last one.
        heads: the heads that are averaged; None: all. CTranslate2's default is ``heads=[0]``.

    Raises:
        TypeError, ValueError: a value is no int, or no head.
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
    """The state of one decode call at a time. Slots are given out by the engine.

    Attributes:
        can_read: whether it has `read`.
        chooses: whether it has `choose`.
        replay: a `pybeam.backends.pinned.Replay` for what `encode` does; None: nothing is captured.
    """

    can_read = False
    chooses = False
    replay: Callable[..., Tensor] | None = None

    def buffers(self) -> Sequence[Tensor]:
        """Return the tensors that are kept between steps. A captured step is valid until one is replaced."""
        return ()

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        """Return how much device memory a source with so many cells of its own needs at most."""
        return 0

    @abstractmethod
    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        """Make room for that many sources, rows per source and cells; grows, never shrinks."""

    @abstractmethod
    def encode(self, sources: Sequence[Any], indices: Sequence[int], slots: Sequence[int]) -> None:
        """Encode sources and keep what decoding them needs under their slots.

        `sources` are as the model's `check` returned them, `indices` their positions in the list
        of requests, or `Request.source_id`.
        """

    @abstractmethod
    def step(self, rows: Rows) -> Tensor:
        """Return the logits [R, V] of the next token of every row.

        The caller may overwrite them, and so may the next step. A step does not change the state of a row;
        only `advance` does. The same step done again gives the same logits.
        """

    def choose(self, rows: Rows, *given: Any) -> Survivors | None:
        """Return the survivors of ``select(step(rows), *given)``; None: `step` must be called."""
        raise NotImplementedError(f"a {type(self).__name__} leaves the selection to others")

    def call(self, rows: Rows) -> LayerCall | None:
        """Return the call that `step` would make, for whoever makes it again; None: `step` must be called."""
        return None

    def read(self, rows: Rows) -> None:
        """Keep what `step` keeps of these rows, whose logits nobody reads.

        They are no entries of a beam. Each row of a source continues the one before it, and their nodes are
        all that the source's tree has up to there.
        """
        raise NotImplementedError(f"a {type(self).__name__} reads tokens in steps")

    @abstractmethod
    def release(self, slots: Sequence[int]) -> None:
        """Forget these sources; their slots will be used again."""

    def attention(
        self,
        sources: Sequence[Any],
        hypotheses: Sequence[Sequence[Sequence[int]]],
        alignment: Alignment,
    ) -> list[list[Tensor]]:
        """Return the attention over each source while each of its hypotheses is made; see `has_attention`.

        `sources` are as the model's `check` returned them. Hypotheses are ids without start token and EOS.
        Each result is [tokens + 1, E] float32 on the host. Row t belongs to the step whose logits gave token
        t, the last row to the step behind the last token. Every row sums to 1.
        """
        raise NotImplementedError(f"a {type(self).__name__} has no attention")

    def advance(self, source: Tensor, target: Tensor) -> None:
        """Move the state of rows with their hypotheses: entry `target[i]` continues old entry `source[i]`.

        Both are [n] int32 and number entries as ``slot * width + entry``; -1 stands for no row. Sessions that
        keep all state in cells need not do anything here.
        """


class InProcess:
    """Something whose weights stay in the process that loaded them. Shallow copies share them."""

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} neither pickles nor is copied deeply, as the weights of its "
            "model would be; pickle the path of the model, and load it in the other process"
        )


class Model(ABC):
    """Weights and facts: all that the engine knows about a model."""

    vocab_size: int  #: logits per row
    start_id: int  #: the token every hypothesis starts from; not part of the output
    eos_id: int  #: the token that ends a hypothesis
    other_eos_ids: tuple[int, ...] = ()  #: other tokens that end a hypothesis
    max_positions: int | None  #: positions of the decoder, None for no limit
    #: where there is no such limit: tokens of a source at most, and of a prefix and what follows it. One
    #: request alone would else keep a stream busy for minutes. A model may be given another number.
    max_tokens: int = 16_384
    device: torch.device  #: where logits are computed
    pad_id: int | None = None  #: the padding token, if there is one
    #: whether rows of one step may continue each other. They may not if state moves with rows (`advance`),
    #: or if a row cannot see the rows of its own step.
    can_draft = True
    #: whether a step may be captured in a CUDA graph: no sizes that depend on data, nothing read back
    can_capture = False
    can_fork = True  #: whether a copy of this process, made by `os.fork`, may compute with it
    has_attention = False  #: whether its sessions have `attention`
    takes_features = False  #: whether sources are features of sound, not token ids
    settings = Settings()  #: what the files of its folder say of every output
    num_parameters: int | None = None  #: numbers in its files; None: not known

    def without(self, *names: str) -> Self:
        """Return the model, with the same weights, without some of its `settings`.

        Args:
            names: as ``settings.names`` has them.

        Raises:
            ValueError: there is no setting of that name.
        """
        settings = self.settings.without(*names)
        if settings == self.settings:
            return self
        model = copy.copy(self)
        model.settings = settings
        return model

    @property
    def why_not_captured(self) -> str:
        """Say so, of a model that has no `can_capture`."""
        return f"a {type(self).__name__} cannot be captured"

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """All tokens that end a hypothesis, `eos_id` first."""
        return (self.eos_id, *self.other_eos_ids)

    @abstractmethod
    def session(self, backend: Backend) -> Session:
        """Make a fresh session that computes with this backend module."""

    @abstractmethod
    def check(self, source: Any) -> Any:
        """Turn a source into what `Session.encode` takes. Raises ValueError or TypeError if it is unfit."""

    def check_alignment(self, alignment: Alignment) -> None:
        """Raise ValueError if there is no such attention."""
        if not self.has_attention:
            raise ValueError(
                f"attention needs a model that has it, but a {type(self).__name__} has none; leave "
                "`alignment` and `coverage` out"
            )

    @abstractmethod
    def source_length(self, source: Any) -> int:
        """``|x|`` of a checked source: the queue is sorted by it, and rewards are counted with it."""

    def prompt(self, source: Any) -> Tensor | None:
        """Return the tokens [P] int32 on the host that hypotheses of this checked source continue, or None.

        The start token stands for the last of them. Processors that count the start count all of them.
        Ids outside the vocabulary are negative.
        """
        return None

    def room(self, source: Any) -> int | None:
        """Return how many positions a hypothesis of this checked source may take, None for no limit."""
        return self.max_positions
