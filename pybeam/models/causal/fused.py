"""A decoder-only stack as one object of a backend that has such a program.

Its results have the bits of one call per operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.layer_program import CausalProgram, CausalShape
from pybeam.models.causal.layers import CausalLayer, CausalStack, RMSNorm
from pybeam.models.linear import Linear, PackedLinear, has_program
from pybeam.models.transformer.layers import token_table

NONE = torch.empty(0)


def fused(backend: Backend, stack: CausalStack, output: Linear | None) -> CausalProgram | None:
    """Return the stack as one object, or None if this backend or these layers have no such program.

    Args:
        backend: its `causal_program` makes the object.
        stack: a decoder-only transformer.
        output: its output layer; None: the object computes states [R, d].
    """
    layers = stack.layers
    if not has_program(layers, output):
        return None
    shape = CausalShape(
        inner_size=_packed(layers[0].gate_up).num_columns // 2,
        activation=stack.activation,
        epsilon=stack.final_norm.epsilon,
        num_heads=stack.num_heads,
        num_key_heads=stack.num_key_heads,
        head_size=stack.head_size,
        scale=stack.scale,
        soft_cap=stack.soft_cap or 0.0,
        output_soft_cap=stack.output_soft_cap or 0.0,
        num_columns=0 if output is None else _packed(output).num_columns,
        embedding_scale=stack.embedding_scale,
        num_tokens=stack.num_tokens,
        num_tables=len(stack.rotary),
        window=[layer.window or 0 for layer in layers],
        rotary=[layer.rotary for layer in layers],
    )
    weight, scale = token_table(stack.token_table)
    no_positions = torch.empty(0, stack.hidden_size)
    weights = [weight, NONE if scale is None else scale, no_positions]
    weights += [stack.final_norm.weight, *_linear(output)]
    for table in stack.rotary:
        weights += [table.cos, table.sin]
    for layer in layers:
        weights += _layer(layer)
    return backend.causal_program(tuple(weights), shape)


def _layer(layer: CausalLayer) -> list[Tensor]:
    """The weights of a layer in the order of the program."""
    return [
        layer.self_norm.weight,
        *_linear(layer.qkv),
        _norm(layer.query_norm),
        _norm(layer.key_norm),
        *_linear(layer.self_out),
        _norm(layer.after_self_norm),
        layer.inner_norm.weight,
        *_linear(layer.gate_up),
        *_linear(layer.inner_out),
        _norm(layer.after_inner_norm),
    ]


def _norm(norm: RMSNorm | None) -> Tensor:
    return NONE if norm is None else norm.weight


def _linear(linear: Linear | None) -> Sequence[Tensor]:
    if linear is None:
        return NONE, NONE, NONE
    return tuple(NONE if tensor is None else tensor for tensor in _packed(linear).packed)


def _packed(linear: Linear) -> PackedLinear:
    assert isinstance(linear, PackedLinear)
    return linear
