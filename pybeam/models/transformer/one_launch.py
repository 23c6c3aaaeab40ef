"""A decoder whose layers are one launch on a GPU, for few rows; see `pybeam.triton_kernels.persistent`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.transfer import to_device
from pybeam.models.linear import PlainLinear
from pybeam.models.transformer.layers import Layer, Stack, token_table
from pybeam.models.transformer.norms import Norm
from pybeam.triton_kernels import persistent

# of the pools and of products
ALIGNMENT = 16


class LayersInOne:
    """The states of a decoder's rows, where one launch takes all layers.

    Args:
        backend: the module that computes embeddings and norms.
        stack: a decoder that `shape_of` takes.
        shape: what that returns.
        output: the layer that reads the states.
    """

    def __init__(
        self, backend: Backend, stack: Stack, shape: persistent.LayersShape, output: Any
    ) -> None:
        is_asked_for = isinstance(output, PlainLinear) and output.weight.is_contiguous()
        self._after = output.weight if is_asked_for else None
        self._backend, self._stack, self._shape = backend, stack, shape
        self._programs = persistent.programs_of(shape, stack.position_table.device)
        before: list[Norm | None] = [None]
        before += [layer.inner_norms.behind for layer in stack.layers]
        self._weights = [
            _addresses(layer, norm) for layer, norm in zip(stack.layers, before, strict=False)
        ]
        self._pools: list[int] = []
        self._table: Tensor | None = None
        self._exchanges: dict[int, persistent.Exchange] = {}

    def __call__(self, inputs: Any, own: Any, cross: Any) -> Tensor | None:
        """Return what `StackRunner.states` does; None: these rows are not for it."""
        cells = own.cells
        is_step = isinstance(inputs, tuple) and cells.mask is not None and cells.paths is None
        if not is_step or own.position is not None or cross is None:
            return None
        token, place = inputs
        sizes = token.shape[0], cells.slot.numel()
        if not persistent.takes_layers(self._shape, *sizes, self._programs):
            return None
        table, exchange = self._addresses(own.pool, cross.pool), self._exchange(sizes[0])
        if table is None or exchange is None:
            return None
        stack = self._stack
        weight, _ = token_table(stack.token_table)  # type: ignore[arg-type]
        facts = weight, stack.position_table, stack.embedding_scale, stack.skipped_id
        norm = stack.embedding_norm and stack.embedding_norm.parts
        x, _ = self._backend.embed_norm(token, place, *facts, [norm, None])  # type: ignore[misc]
        seen = persistent.RowsSee(cells, own.cell, own.pool.num_cells, cross.cells)
        given = self._shape, seen, exchange, self._programs, self._after
        x = persistent.decoder_layers(x, table, *given)
        for last in (stack.layers[-1].inner_norms.behind, stack.final_norm):
            x = x if last is None else last(x)
        return x

    def _exchange(self, num_rows: int) -> persistent.Exchange | None:
        """Return the places of launches of so many rows; None: they cannot be made in a graph."""
        num = persistent.rows_of(num_rows)
        if num not in self._exchanges:
            if _is_capturing():
                return None
            table = self._stack.position_table
            given = self._shape, len(self._stack.layers), num, table.dtype, table.device
            self._exchanges[num] = persistent.exchange_for(*given)
        return self._exchanges[num]

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
        if all(x.dtype == dtype and x.is_contiguous() for x in arrays):
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
    shape = shape_of(backend, stack) if persistent.IS_ON else None
    return None if shape is None else LayersInOne(backend, stack, shape, output)


def shape_of(backend: Backend, stack: Stack) -> persistent.LayersShape | None:
    """Return the sizes of a decoder's layers, or None: `decoder_layers` does not compute such layers.

    They are those of a transformer: attention over hypotheses and sources, a layer norm before or behind each
    sublayer, plain linear layers with biases, and nothing that depends on distances.
    """
    layers, table = stack.layers, stack.token_table
    if not layers or table is None or stack.is_parallel or stack.soft_cap is not None:
        return None
    weight, scale = token_table(table)
    has_embedding = backend.embed_norm is not None and weight.ndim == 2 and scale is None
    if not has_embedding or stack.num_heads != stack.num_key_heads:
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
    dtype, width = stack.position_table.dtype, stack.hidden_size
    kept = [part for norm in one_kind for part in norm.parts[:2]]
    kept += [part for layer in layers for one in layer.linears for part in (one.weight, one.bias)]
    if not all(_is_whole(part, dtype) for part in kept):
        return None
    epsilons = {norm.epsilon for norm in one_kind}
    facts = {(one.num_columns, one._activation_id) for one in inner}
    if len(facts) + len(epsilons) > 2 or stack.num_heads * stack.head_size != width:
        return None
    [(inner_width, activation)] = facts
    return persistent.LayersShape(
        width,
        inner_width,
        stack.num_heads,
        activation,
        epsilons.pop(),
        stack.scale,
        is_pre_norm,
    )


def _is_plain(layer: Layer) -> bool:
    has_more = layer.query_norm or layer.key_norm or layer.rotary is not None
    if layer.cross is None or has_more:
        return False
    return all(isinstance(one, PlainLinear) for one in layer.linears)


def _is_whole(part: Tensor | None, dtype: torch.dtype) -> bool:
    if part is None or part.dtype != dtype or dtype not in persistent.DTYPES:
        return False
    return part.is_contiguous() and part.data_ptr() % ALIGNMENT == 0


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
