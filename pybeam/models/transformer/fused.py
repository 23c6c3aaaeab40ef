"""A stack as one object of a backend that has such a program, with the bits of one call per operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.layer_program import LayerProgram, StackShape
from pybeam.backends.torch_layers import Activation
from pybeam.models.cells import Cells
from pybeam.models.linear import ACTIVATIONS, GatedLinear, Linear, PackedLinear, has_program
from pybeam.models.transformer.layers import (
    AnyNorm,
    DecoderLayer,
    EncoderLayer,
    Norm,
    Stack,
    TokenTable,
    token_table,
)

NONE = torch.empty(0)


class FusedStack:
    """Embeddings, layers and final norm of an encoder or a decoder, and the output layer of a decoder."""

    def __init__(self, program: LayerProgram, size: int, is_relative: bool) -> None:
        self._run, self._size, self._is_relative = program.run, size, is_relative

    def encode(self, inputs: Tensor | tuple[Tensor, Tensor], cells: Cells) -> Tensor:
        """Return the states [n, d] of tokens and positions [n], or of x [n, d], which is overwritten."""
        first = inputs if isinstance(inputs, Tensor) else inputs[0]
        out = torch.empty(first.shape[0], self._size)
        # rows are cells
        position = inputs[1] if self._is_relative else None
        self._run(out, inputs, None, None, None, cells.given, (), position, position)
        return out

    def decode(
        self,
        out: Tensor,
        inputs: tuple[Tensor, Tensor],
        pools: tuple[Tensor, Tensor],
        cell: Tensor,
        cells: tuple[Cells, Cells],
        cell_position: Tensor,
    ) -> Tensor:
        """Return logits in `out` [R, V] for tokens and positions, both [R] int32.

        Args:
            out: memory.
            inputs: tokens and positions.
            pools: keys and values of the rows themselves and of the encoder, [layers, cells, 2, H, D].
            cell: [R] int32, where each row's key and value go; -1: nowhere.
            cells: what rows attend over in these pools.
            cell_position: [cells] int32, positions in the first pool, where they are relative.
        """
        own, cross = cells
        places = (inputs[1], cell_position) if self._is_relative else (None, None)
        self._run(out, inputs, *pools, cell, own.given, cross.given, *places)
        return out


def fused(
    backend: Backend, stack: Stack, output: Linear | None, is_pre_norm: bool
) -> FusedStack | None:
    """Return the stack as one object, or None if this backend or these layers have no such program.

    Args:
        backend: its `layer_program` makes the object.
        stack: an encoder or a decoder.
        output: the output layer of a decoder; None for an encoder.
        is_pre_norm: whether a sublayer is ``x + f(norm(x))``, and not ``norm(x + f(x))``.
    """
    layers, relative = stack.layers, stack.relative
    if not layers or not has_program(layers, output):
        return None
    # the program has one table of biases
    if any(own is not relative[0] for own in relative):
        return None
    inner, activation, is_gated = _inner(layers[0])
    size, table = stack.hidden_size, stack.token_table
    shape = StackShape(
        num_layers=len(layers),
        inner_size=inner.num_columns // (2 if is_gated else 1),
        activation=activation,
        is_pre_norm=is_pre_norm,
        has_cross=isinstance(layers[0], DecoderLayer),
        epsilon=layers[0].self_norm.epsilon,
        num_heads=stack.num_heads,
        scale=stack.scale,
        num_columns=output.num_columns if isinstance(output, PackedLinear) else 0,
        embedding_scale=stack.embedding_scale,
        num_tokens=0 if table is None else stack.num_tokens,
        head_size=stack.head_size,
        is_gated=is_gated,
        bias_origin=relative[0].origin if relative else 0,
    )
    weights = [*_table(table), stack.position_table, *_norm(stack.embedding_norm)]
    weights += [*_norm(stack.final_norm), *_linear(output)]
    weights.append(relative[0].table if relative else NONE)
    for layer in layers:
        weights += _layer(layer)
    program = backend.layer_program(tuple(weights), shape)
    return None if program is None else FusedStack(program, size, bool(relative))


def _table(table: TokenTable | None) -> Sequence[Tensor]:
    """A token table and its scale."""
    weight, scale = (None, None) if table is None else token_table(table)
    return NONE if weight is None else weight, NONE if scale is None else scale


def _norm(norm: AnyNorm | None) -> Sequence[Tensor]:
    if norm is None:
        return NONE, NONE
    return norm.weight, norm.bias if isinstance(norm, Norm) else NONE


def _inner(layer: EncoderLayer) -> tuple[PackedLinear, Activation, bool]:
    """Return the inner layer, its activation, and whether that is of gates."""
    inner = layer.inner
    linear = inner.linear if isinstance(inner, GatedLinear) else inner
    assert isinstance(linear, PackedLinear)
    if isinstance(inner, GatedLinear):
        return linear, ACTIVATIONS[inner.activation], True
    return linear, linear.activation_id, False


def _linear(linear: Linear | None) -> Sequence[Tensor]:
    if linear is None:
        return NONE, NONE, NONE
    assert isinstance(linear, PackedLinear)
    return tuple(NONE if tensor is None else tensor for tensor in linear.packed)


def _layer(layer: EncoderLayer) -> list[Tensor]:
    """The weights of a layer in the order of the operator."""
    weights = [*_norm(layer.self_norm), *_linear(layer.qkv), *_linear(layer.self_out)]
    if isinstance(layer, DecoderLayer):
        weights += _norm(layer.cross_norm)
        weights += [*_linear(layer.cross_query), *_linear(layer.cross_out)]
    weights += _norm(layer.inner_norm)
    inner, *_ = _inner(layer)
    return [*weights, *_linear(inner), *_linear(layer.inner_out)]
