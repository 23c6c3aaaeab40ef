"""Send rows through a stack: as one object of a backend that has it, or one operator after another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.defaults import write_nodes
from pybeam.backends.layer_program import LayerCall, LayerProgram
from pybeam.contracts import Distances, NewNodes, Survivors
from pybeam.kvcache.pools import KeyValuePool
from pybeam.models.base import Session
from pybeam.models.cells import Cells
from pybeam.models.linear import Linear, PackedLinear
from pybeam.models.rows import Rows
from pybeam.models.transformer.fused import fused
from pybeam.models.transformer.layers import Layer, Stack
from pybeam.models.transformer.norms import joined

# tokens [n] and their rows [n] in tables of positions, both int32, or hidden states [n, d]
Inputs = Tensor | tuple[Tensor, Tensor]
# the attention of layer i for what its stack projects: query, key and value; None: nobody reads it
OwnAttention = Callable[..., Tensor | None]
# the attention of layer i over encoder states for its query
CrossAttention = Callable[[int, Tensor], Tensor]


class Seen(NamedTuple):
    """The cells that the rows of one call attend over, and where their own keys and values go.

    Rows with a position but without positions of cells, masks or paths are those of prompts: each sees the
    cells of its prompt up to itself.
    """

    cells: Cells
    pool: KeyValuePool | None = None  # None: the rows of an encoder, which are cells
    cell: Tensor | None = None  # [R] int32, where each row's key and value go; -1: nowhere
    position: Tensor | None = None  # [R] int32, where distances matter, or of prompts
    cell_position: Tensor | None = None  # [cells] int32, where distances matter
    prompts: tuple[Tensor, ...] = ()  # which a program puts before the rows; see `LayerProgram.run`

    @property
    def is_prompt(self) -> bool:
        """Whether the rows are those of prompts, and not entries of beams."""
        has_own = self.position is not None and self.cell_position is None
        return has_own and self.cells.entry is None and self.pool is not None

    def attend(
        self, backend: Backend, stack: Stack, i: int, layer: Layer, *parts: Tensor
    ) -> Tensor:
        """Compute ``softmax(scale * query key^T) value`` [R, H, D] over the cells that each row sees.

        Keys and values are written to their cells first. `parts` are query, key and value.
        """
        query, key, value = parts
        distances = self._distances(stack, layer)
        if self.pool is None:
            return self.cells.attend(backend, query, key, value, stack.scale, distances)
        assert self.cell is not None
        pool = self.pool.key[i], self.pool.value[i]
        if not self.is_prompt:
            new = NewNodes(key, value, self.cell)
            return self.cells.attend(backend, query, *pool, stack.scale, distances, new)
        assert self.position is not None
        self.write(backend, i, key, value)
        prompts, position, scale = self.cells[:4], self.position, stack.scale
        window, cap = layer.window or 0, stack.soft_cap or 0.0
        bias = None if layer.relative is None else layer.relative.table
        return backend.prompt_attention(query, *pool, *prompts, position, scale, window, cap, bias)

    def write(self, backend: Backend, i: int, key: Tensor, value: Tensor) -> None:
        """Write the keys and values of layer i to their cells."""
        assert self.pool is not None and self.cell is not None
        pool = self.pool.key[i], self.pool.value[i]
        write_nodes(backend.scatter_rows, *pool, NewNodes(key, value, self.cell))

    def _distances(self, stack: Stack, layer: Layer) -> Distances | None:
        """Return what distances and caps change in the scores of a layer."""
        cap = stack.soft_cap
        if layer.relative is None and layer.window is None:
            return None if cap is None else Distances(soft_cap=cap)
        bias, origin = layer.relative or (None, 0)
        return Distances(self.position, self.cell_position, bias, origin, layer.window, cap)


def run_layers(
    backend: Backend,
    stack: Stack,
    inputs: Inputs,
    own: OwnAttention,
    cross: CrossAttention | None = None,
) -> Tensor | None:
    """Return states [n, d] behind the final norm, one operator after another; None: nobody reads them."""
    place = None if isinstance(inputs, Tensor) else inputs[1]
    x, y = stack.begun(inputs) if isinstance(inputs, Tensor) else stack.embed(backend, *inputs)
    for i, layer in enumerate(stack.layers):
        attended = own(i, layer, *stack.project(layer, y, place))
        if attended is None:
            return None
        attended, following = attended.flatten(1), stack.following(i + 1)
        before_inner = layer.inner_norms.before
        if stack.is_parallel:
            inner = layer.inner(x if before_inner is None else before_inner(x))
            x = layer.self_out.add(x, attended)
            x, y = joined(backend, layer.inner_out, layer.inner_norms, following, x, inner)
            continue
        after_self = before_inner if layer.cross is None else layer.cross.norms.before
        x, y = joined(backend, layer.self_out, layer.self_norms, after_self, x, attended)
        if layer.cross is not None:
            assert cross is not None
            query = layer.cross.query(y).view(-1, stack.num_heads, stack.head_size)
            y = cross(i, query).flatten(1)
            x, y = joined(backend, layer.cross.out, layer.cross.norms, before_inner, x, y)
        y = layer.inner(y)
        x, y = joined(backend, layer.inner_out, layer.inner_norms, following, x, y)
    return y


class StackRunner:
    """A stack and its output layer, if there is one, with the backend of a session.

    Args:
        backend: the module that computes; a stack is one object there, if it has such programs.
        stack: an encoder or a decoder.
        output: the output layer of a decoder, or what makes a decoder's keys and values of encoder states.

    Attributes:
        program: all as one object; None: operators do it.
        shortcut: `LayersInOne` or `PeakedOutput`, which may do a call in fewer launches; None: there is none.
    """

    def __init__(self, backend: Backend, stack: Stack, output: Linear | None = None) -> None:
        self.shortcut: Any = None
        if backend.few_rows is not None:
            from pybeam.models.transformer.few_rows import with_products
            from pybeam.models.transformer.one_launch import in_one_launch
            from pybeam.models.transformer.peaked_output import with_peaks

            layers = in_one_launch(backend, stack, output)
            self.shortcut = with_peaks(self, stack, output, layers)
            stack = with_products(stack, backend.few_rows)
        self._backend, self._stack, self._output = backend, stack, output
        self.program = fused(backend, stack, output)
        # kept between steps, because on a CPU fresh memory of this size costs a page fault every few rows
        self._memory = torch.empty(0)

    @cached_property
    def _states_program(self) -> LayerProgram | None:
        """The stack without its output layer."""
        if self._output is None or self.program is None:
            return self.program
        return fused(self._backend, self._stack, None)

    def states(self, inputs: Inputs, own: Seen, cross: Seen | None = None) -> Tensor:
        """Return the states [n, d] that the output layer reads. Hidden states as inputs are overwritten.

        Args:
            inputs: see `Inputs`.
            own: what rows of this stack see.
            cross: what they see of encoder states.
        """
        program = self._states_program
        if program is not None:
            first = inputs if isinstance(inputs, Tensor) else inputs[0]
            x = torch.empty(first.shape[0], self._stack.hidden_size)
            program.run(*_arguments(x, inputs, own, cross))
            return x
        one = self.shortcut
        if one is not None and (x := one.states(inputs, own, cross)) is not None:
            return x
        backend, stack = self._backend, self._stack

        def attend_own(i: int, layer: Layer, *parts: Tensor) -> Tensor:
            return own.attend(backend, stack, i, layer, *parts)

        def attend_cross(i: int, query: Tensor) -> Tensor:
            assert cross is not None and cross.pool is not None
            pool = cross.pool.key[i], cross.pool.value[i]
            return cross.cells.attend(backend, query, *pool, stack.scale)

        states = run_layers(backend, stack, inputs, attend_own, attend_cross)
        assert states is not None
        return states

    def call(self, inputs: Inputs, own: Seen, cross: Seen | None) -> LayerCall:
        """Return what `logits` would call. There may be room for the logits of more rows."""
        assert self.program is not None
        self._logits_of(len(inputs[0]))
        return LayerCall(self.program, _arguments(self._memory, inputs, own, cross))

    def logits(
        self, inputs: Inputs, own: Seen, cross: Seen | None = None, wanted: Tensor | None = None
    ) -> Tensor:
        """Return logits [n, V], which the next call may overwrite; see `states`.

        Those of tokens that are not `wanted` [m] may be missing.
        """
        output, cap = self._output, self._stack.output_soft_cap
        assert output is not None
        num_rows = len(inputs[0]) if isinstance(inputs, tuple) else len(inputs)
        if self.program is not None and wanted is None:
            out = self._logits_of(num_rows)
            self.program.run(*_arguments(out, inputs, own, cross))
            return out
        one = self.shortcut
        if one is not None and (found := one.logits(inputs, own, cross)) is not None:
            return found
        x = self.states(inputs, own, cross)
        if self.program is None or wanted is None:
            out = output(x, None if x.is_cuda else self._logits_of(num_rows))
            if cap is not None:
                self._backend.soft_cap(out, cap)
            return out
        assert isinstance(output, PackedLinear), "others are not fused"
        out = output.some(x, wanted, self._logits_of(num_rows))
        if cap is not None:
            column = torch.unique(wanted.long())
            capped = out[:, column]
            self._backend.soft_cap(capped, cap)
            out[:, column] = capped
        return out

    def keep(self, inputs: Inputs, own: Seen, pool: KeyValuePool) -> None:
        """Write what the output layer of an encoder's program gives to `own.cell` of a decoder's pool."""
        assert self.program is not None
        cells, _, cell, *places, sources = own
        self.program.run(None, inputs, None, pool.memory, cell, cells.given, sources, *places)

    def write(self, inputs: Inputs, own: Seen) -> None:
        """Write keys and values of rows, whose states nobody reads."""
        if self.program is not None:
            self.program.run(*_arguments(None, inputs, own, None))
            return
        backend, stack = self._backend, self._stack

        def attend_own(i: int, layer: Layer, *parts: Tensor) -> Tensor | None:
            if i + 1 < len(stack.layers):
                return own.attend(backend, stack, i, layer, *parts)
            return own.write(backend, i, *parts[1:])

        run_layers(backend, stack, inputs, attend_own)

    def _logits_of(self, num_rows: int) -> Tensor:
        """Return memory [n, V] for the logits of so many rows."""
        assert self._output is not None
        if self._memory.shape[0] < num_rows:
            self._memory = self._stack.position_table.new_empty(num_rows, self._output.num_columns)
        return self._memory[:num_rows]


def _arguments(
    out: Tensor | None, inputs: Inputs, own: Seen, cross: Seen | None
) -> tuple[Any, ...]:
    """Return the arguments of `LayerProgram.run`."""
    cells, pool, cell, *places, sources = own
    own_pool = None if pool is None else pool.memory
    cross_pool = None if cross is None or cross.pool is None else cross.pool.memory
    sources = sources if cross is None else cross.cells.given
    return out, inputs, own_pool, cross_pool, cell, cells.given, sources, *places


class StackSession(Session):
    """A decode call whose decoder is a stack. Subclasses set `_decoder`, and say what its rows see."""

    _decoder: StackRunner

    def step(self, rows: Rows) -> Tensor:
        return self._decoder.logits(*self._seen(rows, Cells.of_tree(rows)), wanted=rows.wanted)

    def choose(self, rows: Rows, *given: Any) -> Survivors | None:
        return self._decoder.shortcut.chosen(*self._seen(rows, Cells.of_tree(rows)), *given)

    def call(self, rows: Rows) -> LayerCall | None:
        # operators, and a step of another kind, are asked for each step
        if self._decoder.program is None or type(self).step is not StackSession.step:
            return None
        return self._decoder.call(*self._seen(rows, Cells.of_tree(rows)))

    @abstractmethod
    def _seen(self, rows: Rows, own: Cells) -> tuple[Inputs, Seen, Seen | None]:
        """Return the inputs of rows, and what they see: `own` cells of the tree, and encoder states."""
