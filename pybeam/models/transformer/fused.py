"""A stack as one object of a backend, with the bits of one call per operator, but in encoders of few bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.layer_program import LayerProgram, StackShape
from pybeam.models.linear import ACTIVATIONS, GatedLinear, Linear, PackedLinear
from pybeam.models.transformer.layers import Layer, Stack, token_table
from pybeam.models.transformer.norms import Norm, Norms

NONE = torch.empty(0)


def fused(backend: Backend, stack: Stack, output: Linear | None) -> LayerProgram | None:
    """Return the stack as one object, or None if this backend or these layers have no such program.

    Args:
        backend: its `layer_program` makes the object.
        stack: an encoder or a decoder.
        output: the output layer of a decoder; None: the object computes states [R, d].
    """
    layers = stack.layers
    linears = [linear for layer in layers for linear in layer.linears]
    linears += [] if output is None else [output]
    # the program has one table of biases
    if not layers or any(layer.relative is not layers[0].relative for layer in layers):
        return None
    if not all(isinstance(linear, PackedLinear) and linear.shares_weights for linear in linears):
        return None
    first = layers[0]
    inner, is_gated = first.inner, isinstance(first.inner, GatedLinear)
    assert isinstance(inner, GatedLinear | PackedLinear)
    shape = StackShape(
        inner_size=first.linears[-2].num_columns // (2 if is_gated else 1),
        activation=ACTIVATIONS[inner.activation] if inner.activation else 0,
        is_gated=is_gated,
        is_parallel=stack.is_parallel,
        has_cross=first.cross is not None,
        epsilon=_epsilon(stack),
        num_heads=stack.num_heads,
        num_key_heads=stack.num_key_heads,
        head_size=stack.head_size,
        scale=stack.scale,
        soft_cap=stack.soft_cap or 0.0,
        output_soft_cap=stack.output_soft_cap or 0.0,
        num_columns=0 if output is None else output.num_columns,
        embedding_scale=stack.embedding_scale,
        num_tokens=stack.num_tokens,
        skipped_id=stack.skipped_id,
        bias_origin=first.relative.origin if first.relative else 0,
        num_tables=len(stack.rotary),
        window=[layer.window or 0 for layer in layers],
        rotary=[-1 if layer.rotary is None else layer.rotary for layer in layers],
    )
    table, scale = (None, None) if stack.token_table is None else token_table(stack.token_table)
    weights = [_some(table), _some(scale), stack.position_table]
    weights += [*_norm(stack.embedding_norm), *_norm(stack.final_norm), *_linear(output)]
    weights.append(first.relative.table if first.relative else NONE)
    for rotary in stack.rotary:
        weights += [rotary.cos, rotary.sin]
    for layer in layers:
        weights += _layer(layer)
    return backend.layer_program(tuple(weights), shape)


def _layer(layer: Layer) -> list[Tensor]:
    """Return the weights of a layer in the order of the program."""
    weights = [*_norms(layer.self_norms), *_linear(layer.qkv)]
    weights += [*_norm(layer.query_norm), *_norm(layer.key_norm), *_linear(layer.self_out)]
    if layer.cross is not None:
        weights += _norms(layer.cross.norms)
        weights += [*_linear(layer.cross.query), *_linear(layer.cross.out)]
    *_, inner, inner_out = layer.linears
    return [*weights, *_norms(layer.inner_norms), *_linear(inner), *_linear(inner_out)]


def _epsilon(stack: Stack) -> float:
    """Return the epsilon of the stack's norms, which is the same in all."""
    norms = stack.layers[0].self_norms
    [epsilon] = {one.epsilon for one in (norms.before, norms.added, norms.behind) if one}
    return epsilon


def _norms(norms: Norms) -> list[Tensor]:
    return [*_norm(norms.before), *_norm(norms.added), *_norm(norms.behind)]


def _norm(norm: Norm | None) -> Sequence[Tensor]:
    return (NONE, NONE) if norm is None else (norm.weight, _some(norm.bias))


def _linear(linear: Linear | None) -> Sequence[Tensor]:
    if linear is None:
        return NONE, NONE, NONE
    assert isinstance(linear, PackedLinear)
    return tuple(_some(tensor) for tensor in linear.packed)


def _some(tensor: Tensor | None) -> Tensor:
    return NONE if tensor is None else tensor
