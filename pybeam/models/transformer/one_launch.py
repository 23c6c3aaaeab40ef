"""A decoder whose layers are one launch on a GPU, for few rows (`csrc/cuda/decoder_layers.cu`).

A step of few rows takes as long as its kernels are many. Here the blocks of one kernel stay on the GPU, from
the tokens of rows to their logits. They wait for one another eight or nine times a layer, while a copy engine
reads the weights that come next. Where nothing changes the logits, some blocks select the survivors.

It is off unless the environment has PYBEAM_PERSISTENT=1. It is for an extension that was built with CUDA, and
for GPUs of compute capability 9.0.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.arrays import SelectInputs
from pybeam.backends.torch_layers import Activation
from pybeam.backends.transfer import to_device
from pybeam.contracts import SelectOptions, Survivors
from pybeam.models.linear import PlainLinear
from pybeam.models.transformer import cuda_operators
from pybeam.models.transformer.cuda_operators import is_whole
from pybeam.models.transformer.layers import Layer, Stack, token_table
from pybeam.models.transformer.norms import Norm

VARIABLE = "PYBEAM_PERSISTENT"
IS_ON = os.environ.get(VARIABLE) == "1"
# rows of a tile
LINES = 8
# blocks that have left, launches so far, and blocks that have left logits
BOOKS = 3

# weight and bias of the norm before the output layer, and its own
OutputParts = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
NO_OUTPUT: OutputParts = (None, None, None, None)
# as `selected` gives them
NO_CHOICE: tuple[Any, ...] = (*[None] * 10, [], 0, 0, True)


class LayersShape(NamedTuple):
    """Sizes that all layers share."""

    width: int  # d
    inner_width: int  # F
    num_heads: int
    activation: int  # `Activation`
    is_pre_norm: bool
    epsilon: float
    scale: float


class LayersInOne:
    """The states or the logits of a decoder's rows, where one launch takes all layers.

    Args:
        backend: the module that computes embeddings and norms.
        stack: a decoder that `shape_of` takes.
        shape: its sizes.
        output: the layer that reads the states.
    """

    def __init__(self, backend: Backend, stack: Stack, shape: LayersShape, output: Any) -> None:
        self._backend, self._stack, self._shape = backend, stack, shape
        self._output = _output_parts(stack, output)
        before: list[Norm | None] = [None]
        before += [layer.inner_norms.behind for layer in stack.layers]
        self._weights = [
            _addresses(layer, norm) for layer, norm in zip(stack.layers, before, strict=False)
        ]
        self._pools: list[int] = []
        self._table: Tensor | None = None
        # by rows and logits; None: a launch does not take so many
        self._places: dict[tuple[int, int], tuple[Tensor, Tensor] | None] = {}

    def states(self, inputs: Any, own: Any, cross: Any) -> Tensor | None:
        """Return what `StackRunner.states` does; None: these rows are not for it."""
        found = self._run(inputs, own, cross, NO_OUTPUT)
        if found is None:
            return None
        [x] = found
        for last in (self._stack.layers[-1].inner_norms.behind, self._stack.final_norm):
            x = x if last is None else last(x)
        return x

    def logits(self, inputs: Any, own: Any, cross: Any) -> Tensor | None:
        """Return what `StackRunner.logits` does; None: the output layer or the rows are not for it."""
        output = self._output
        found = None if output is None else self._run(inputs, own, cross, output)
        return None if found is None else found[0]

    def chosen(
        self, inputs: Any, own: Any, cross: Any, given: SelectInputs, options: SelectOptions
    ) -> Survivors | None:
        """Return what `select` makes of `logits`; None: rows or rules are not for it."""
        output = self._output
        if output is None or not cuda_operators.takes_choice(self._stack.position_table, options):
            return None
        beams = given.score, given.offset, given.width
        found = self._run(inputs, own, cross, output, cuda_operators.selected(*beams, options))
        return None if found is None else Survivors(*found)

    def _run(
        self,
        inputs: Any,
        own: Any,
        cross: Any,
        output: OutputParts,
        selected: tuple[Any, ...] = NO_CHOICE,
    ) -> list[Tensor] | None:
        cells = own.cells
        is_step = isinstance(inputs, tuple) and cells.mask is not None and cells.paths is None
        if not is_step or own.position is not None or cross is None:
            return None
        num_rows = inputs[0].shape[0]
        table = self._addresses(own.pool, cross.pool)
        places = self._places_of(num_rows, 0 if output[2] is None else len(output[2]))
        if table is None or places is None or cells.slot.numel() > num_rows:
            return None
        stack = self._stack
        weight, _ = token_table(stack.token_table)  # type: ignore[arg-type]
        scale, skipped = stack.embedding_scale, stack.skipped_id
        x = None
        if stack.embedding_norm is not None:
            facts = weight, stack.position_table, scale, skipped, [stack.embedding_norm.parts, None]
            x, _ = self._backend.embed_norm(*inputs, *facts)  # type: ignore[misc]
        arrays = [*cells[:6], own.cell, *cross.cells[2:4]]
        seen = [array.contiguous() for array in arrays]
        embedding = [array.contiguous() for array in (*inputs, weight, stack.position_table)]
        shape = self._shape
        sizes = own.pool.num_cells, *shape[1:5], skipped, scale, shape.epsilon, shape.scale
        given = x, embedding, [table, *places], seen, *output, *selected, *sizes
        return cuda_operators.operator("decoder_layers")(*given)

    def _places_of(self, num_rows: int, num_logits: int) -> tuple[Tensor, Tensor] | None:
        """Return the places of launches of so many rows, all of them empty, and their books."""
        num = -(-num_rows // LINES) * LINES
        if (num, num_logits) not in self._places:
            if _is_capturing():
                return None
            shape, like = self._shape, self._stack.position_table
            sizes = num, len(self._weights), shape.inner_width, shape.num_heads, num_logits
            self._places[num, num_logits] = None
            numbers = cuda_operators.operator("takes_decoder_layers")(like, *sizes)
            if numbers:
                size = 2, len(self._weights), numbers
                places = torch.full(size, -1, dtype=torch.int16, device=like.device)
                books = torch.zeros(BOOKS, dtype=torch.int32, device=like.device)
                self._places[num, num_logits] = places, books
        return self._places[num, num_logits]

    def _addresses(self, *pools: Any) -> Tensor | None:
        """Return the table of `decoder_layers`; None: it cannot be made in a graph, or not of these pools."""
        found = [layer.data_ptr() for pool in pools for layer in pool.both]
        if found == self._pools:
            return self._table
        if _is_capturing():
            return None
        dtype, device = self._stack.position_table.dtype, self._stack.position_table.device
        arrays = [layer for pool in pools for layer in pool.both]
        self._table = None
        if all(is_whole(x, dtype) for x in arrays):
            num = len(self._weights)
            lines = [
                [*weights, *both]
                for weights, *both in zip(self._weights, found[:num], found[num:], strict=True)
            ]
            self._table = to_device(lines, torch.int64, device)
        self._pools = found
        return self._table


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def in_one_launch(backend: Backend, stack: Stack, output: Any) -> LayersInOne | None:
    """Return the layers of a decoder as one launch, or None: it is off, or they are not for it.

    Args:
        backend: the module that computes the rest.
        stack: an encoder or a decoder.
        output: the layer that reads the states, or None.
    """
    is_on = IS_ON and cuda_operators.has_operator("decoder_layers", VARIABLE)
    shape = shape_of(backend, stack) if is_on else None
    return None if shape is None else LayersInOne(backend, stack, shape, output)


def shape_of(backend: Backend, stack: Stack) -> LayersShape | None:
    """Return the sizes of a decoder's layers, or None: `decoder_layers` does not compute such layers.

    They are those of a transformer: attention over hypotheses and sources, a layer norm before or behind each
    sublayer, plain linear layers with biases, and nothing that depends on distances.
    """
    layers, table = stack.layers, stack.token_table
    if not layers or table is None or stack.is_parallel or stack.soft_cap is not None:
        return None
    weight, scale = token_table(table)
    dtype, width = stack.position_table.dtype, stack.hidden_size
    tables = weight, stack.position_table
    has_embedding = backend.embed_norm is not None and weight.ndim == 2 and scale is None
    if not has_embedding or not all(is_whole(table, dtype) for table in tables):
        return None
    if stack.num_heads != stack.num_key_heads:
        return None
    if stack.has_distances or not all(map(_is_plain, layers)):
        return None
    norms = [norm for layer in layers for norm in _norms(layer)]
    inner: list[Any] = [layer.inner for layer in layers]
    is_pre_norm = norms[0].before is not None
    one_kind = [norm.before if is_pre_norm else norm.behind for norm in norms]
    others = [norm.behind if is_pre_norm else norm.before for norm in norms]
    if any(others) or any(norm.added for norm in norms) or not all(one_kind):
        return None
    kept = [part for norm in one_kind for part in norm.parts[:2]]
    kept += [part for layer in layers for one in layer.linears for part in (one.weight, one.bias)]
    if not all(is_whole(part, dtype) for part in kept):
        return None
    epsilons = {norm.epsilon for norm in one_kind}
    facts = {(one.num_columns, one._activation_id) for one in inner}
    if len(facts) + len(epsilons) > 2 or stack.num_heads * stack.head_size != width:
        return None
    [(inner_width, activation)] = facts
    sizes = width, inner_width, stack.num_heads, int(activation)
    return LayersShape(*sizes, is_pre_norm, epsilons.pop(), stack.scale)


def _output_parts(stack: Stack, output: Any) -> OutputParts | None:
    """Return an output layer and the norm before, or None: a launch does not take them.

    It takes a plain layer without an activation, behind one layer norm or none.
    """
    norms = [stack.layers[-1].inner_norms.behind, stack.final_norm]
    found = [norm for norm in norms if norm is not None]
    is_plain = type(output) is PlainLinear and output._activation_id == Activation.NONE
    if not is_plain or stack.output_soft_cap is not None or len(found) > 1:
        return None
    # the kernel has one epsilon
    own = stack.layers[-1].inner_norms.before
    if found and own is not None and found[0].epsilon != own.epsilon:
        return None
    norm = found[0].parts[:2] if found else (None, None)
    parts = [part for part in (*norm, output.weight, output.bias) if part is not None]
    are_whole = all(is_whole(part, stack.position_table.dtype) for part in parts)
    has_shift = not found or norm[1] is not None
    return (*norm, output.weight, output.bias) if are_whole and has_shift else None


def _is_plain(layer: Layer) -> bool:
    has_more = layer.query_norm or layer.key_norm or layer.rotary is not None
    if layer.cross is None or has_more:
        return False
    return all(type(one) is PlainLinear for one in layer.linears)


def _norms(layer: Layer) -> list[Any]:
    assert layer.cross is not None
    return [layer.self_norms, layer.cross.norms, layer.inner_norms]


def _addresses(layer: Layer, before: Norm | None) -> list[int]:
    """The addresses of a layer's products and their norms; `before` is the norm behind the last layer."""
    own, cross, inner = _norms(layer)
    norms = [own.before or before, None, cross.before or own.behind, None]
    norms += [inner.before or cross.behind, None]
    found = []
    for norm, linear in zip(norms, layer.linears, strict=True):
        parts = (None, None) if norm is None else norm.parts[:2]
        found += [0 if part is None else part.data_ptr() for part in parts]
        found += [linear.weight.data_ptr(), linear.bias.data_ptr()]
    return found
