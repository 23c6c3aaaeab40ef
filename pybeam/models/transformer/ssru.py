"""Marian's SSRU: decoder layers with a recurrent state in place of attention over earlier tokens.

See Kim et al. 2019, "From Research to Production and Back: Ludicrously Fast Neural Machine Translation".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.models.cells import Cells
from pybeam.models.linear import Linear
from pybeam.models.row_states import RowStates
from pybeam.models.rows import Rows
from pybeam.models.transformer.given import GivenAssembly
from pybeam.models.transformer.layers import Layer, Stack, TokenTable
from pybeam.models.transformer.model import Transformer, TransformerSession
from pybeam.models.transformer.running import Seen
from pybeam.models.transformer.stacks import StackReader


class Unchanged:
    """Stands where the last linear layer of a sublayer stands, and gives what it reads."""

    def with_backend(self, backend: Backend) -> Unchanged:
        """Return the same."""
        return self

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + x; the memory of the residual may be used for it."""
        return residual.add_(x)

    def without_bias(self, x: Tensor) -> tuple[Tensor, None]:
        """Return x, and no bias."""
        return x, None


@dataclass(frozen=True, slots=True)
class SsruStack(Stack):
    """A decoder whose `qkv` [2 d, d] give candidates and forget gates, with `Unchanged` as `self_out`."""

    def project(self, layer: Layer, y: Tensor, place: Tensor | None) -> tuple[Tensor, ...]:
        """Return candidates and forget gates, before their sigmoid, [n, d] each."""
        return layer.qkv(y).chunk(2, 1)


class Recurrence:
    """The states [R, layers, d] in which rows of one step see earlier tokens.

    Attributes:
        new: the states after the step, of each layer.
    """

    def __init__(self, states: Tensor) -> None:
        self._states = states
        self.new: list[Tensor] = []

    def attend(
        self,
        backend: Backend,
        stack: Stack,
        i: int,
        layer: Layer,
        candidate: Tensor,
        forget: Tensor,
    ) -> Tensor:
        """Compute ``c' = x + f (c - x)`` with ``f = sigmoid(forget)``; return ``relu(c')`` [R, d]."""
        # torch's sigmoid has other bits where a thread ends
        kept = backend.glu(torch.cat((self._states[:, i] - candidate, forget), 1))
        self.new.append(candidate + kept)
        return self.new[-1].relu()


class SsruReader(StackReader):
    """Reads the layers of such a decoder: ``rnn.candidate`` [d, d], and ``rnn.forget`` with a bias."""

    def _qkv(self, prefix: str) -> Linear:
        d = self._facts.hidden_size
        names = [f"{prefix}rnn.candidate", f"{prefix}rnn.forget"]
        return self._linear(names, [d, d], d, [False, True])

    def _self_out(self, prefix: str) -> Any:
        return Unchanged()


class SsruAssembly(GivenAssembly):
    """Builds a transformer with an SSRU decoder."""

    def model(self) -> SsruTransformer:
        return SsruTransformer(self._weights())

    def _stack_reader(self, name: str) -> StackReader:
        if name == "encoder":
            return super()._stack_reader(name)
        return SsruReader(self.reader, self._facts(name))

    def _stack(self, name: str, table: TokenTable | None) -> Stack:
        stack = super()._stack(name, table)
        if name == "encoder":
            return stack
        return SsruStack(**{one.name: getattr(stack, one.name) for one in fields(stack)})


class SsruTransformer(Transformer):
    """A transformer of Marian with an SSRU decoder; made by `pybeam.load_model`."""

    can_draft = False  # a row needs the state of the row before it
    has_attention = False

    def session(self, backend: Backend) -> SsruSession:
        """Make a fresh session that computes with this backend module."""
        return SsruSession(self.with_backend(backend), backend)


class SsruSession(TransformerSession):
    """Keep the states of every row, and keys and values of encoder states once per source."""

    can_read = False

    def __init__(self, model: SsruTransformer, backend: Backend) -> None:
        super().__init__(model, backend)
        shape = len(model.decoder.layers), model.decoder.hidden_size
        self._states = RowStates(shape, model.dtype, model.device, backend)

    def reserve(self, num_slots: int, width: int, num_cells: int) -> None:
        self._states.reserve(num_slots, width)
        self._source.reserve(num_slots)

    def buffers(self) -> Sequence[Tensor]:
        return self._states.memory, *super().buffers()

    def max_bytes(self, num_cells: int, source_length: int) -> int:
        """Return the bytes of keys and values of encoder states. The states of rows are not counted."""
        return super().max_bytes(0, source_length)

    def encode(
        self, sources: Sequence[Tensor], indices: Sequence[int], slots: Sequence[int]
    ) -> None:
        self._states.begin(slots)
        super().encode(sources, indices, slots)

    def release(self, slots: Sequence[int]) -> None:
        super().release(slots)
        self._states.forget(slots)

    def step(self, rows: Rows) -> Tensor:
        own: Any = Recurrence(self._states.read(rows))  # stands where `Seen` stands
        cross = Seen(Cells.of_encoder(rows, self._source), self._cross)
        logits = self._decoder.logits((rows.token, rows.position), own, cross, wanted=rows.wanted)
        self._states.write(rows, torch.stack(own.new, 1))
        return logits

    def advance(self, source: Tensor, target: Tensor) -> None:
        self._states.advance(source, target)
