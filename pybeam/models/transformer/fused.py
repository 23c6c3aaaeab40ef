"""The layers of a stack in one call of a backend that has such an operator, with the bits of many calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.models.cells import Cells
from pybeam.models.linear import Linear, PackedLinear
from pybeam.models.transformer.layers import DecoderLayer, EncoderLayer, Norm, Stack

NONE = torch.empty(0)


class FusedStack:
    """The layers of an encoder or a decoder, its final norm and, if there is one, the output layer.

    Args:
        run: `run_layers` of a backend.
        stack: packed layers.
        output: packed; None for an encoder.
        is_pre_norm: whether a sublayer is ``x + f(norm(x))``, and not ``norm(x + f(x))``.
    """

    def __init__(
        self, run: Any, stack: Stack, output: PackedLinear | None, is_pre_norm: bool
    ) -> None:
        first = stack.layers[0]
        assert isinstance(first.inner, PackedLinear)
        self._run = run
        self._weights = [*_norm(stack.final_norm), *_linear(output)]
        for layer in stack.layers:
            self._weights += _layer(layer)
        size = stack.position_table.shape[1]
        self._numbers = (
            len(stack.layers),
            first.inner.num_columns,
            first.inner.activation_id,
            is_pre_norm,
            first.self_norm.epsilon,
            stack.num_heads,
            (size // stack.num_heads) ** -0.5,
        )

    def encode(self, x: Tensor, cells: Cells) -> Tensor:
        """Return the states [n, d] of inputs x [n, d], which are overwritten. Cells are rows of x."""
        out = torch.empty_like(x)
        self._run(out, x, self._weights, *self._numbers, None, None, None, cells[:4], [])
        return out

    def decode(
        self,
        x: Tensor,
        logits: Tensor,
        pools: tuple[Tensor, Tensor],
        cell: Tensor,
        cells: tuple[Cells, Cells],
    ) -> Tensor:
        """Compute logits [R, V] of inputs x [R, d], which are overwritten.

        Args:
            x: embeddings.
            logits: memory [at least R, V].
            pools: keys and values of the rows themselves and of the encoder, [layers, cells, 2, H, D].
            cell: [R] int32, where each row's key and value go; -1: nowhere.
            cells: what rows attend over in these pools.
        """
        out = logits[: x.shape[0]]
        own, cross = cells
        self._run(out, x, self._weights, *self._numbers, *pools, cell, own, cross[:4])
        return out


def fused(
    backend: Backend, stack: Stack, output: Linear | None, is_pre_norm: bool
) -> FusedStack | None:
    """Return the stack as one call, or None if this backend or these layers take one call per operator."""
    run = getattr(backend, "run_layers", None)
    if run is None or not stack.layers or not isinstance(stack.layers[0].qkv, PackedLinear):
        return None
    assert output is None or isinstance(output, PackedLinear)
    return FusedStack(run, stack, output, is_pre_norm)


def _norm(norm: Norm | None) -> Sequence[Tensor]:
    return (NONE, NONE) if norm is None else (norm.weight, norm.bias)


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
    return [*weights, *_linear(layer.inner), *_linear(layer.inner_out)]
