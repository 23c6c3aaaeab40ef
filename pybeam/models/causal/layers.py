"""The parts of a decoder-only transformer that hold weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from pybeam import backends
from pybeam.backends import Backend, torch_layers
from pybeam.backends.packing import Quantised
from pybeam.models.causal.rotary import RotaryTable
from pybeam.models.linear import Linear, PackedLinear
from pybeam.models.transformer.layers import TokenTable, token_table


class RMSNorm:
    """``x * rsqrt(mean(x^2) + epsilon) * weight`` of every row, or of every head of a row.

    Gemma's ``1 + weight`` is in the weight. A backend computes it if the linear layers are packed for one.
    """

    def __init__(self, weight: Tensor, epsilon: float, *, is_packed: bool = False) -> None:
        self.weight, self.epsilon = weight, epsilon  # [d] or [D]
        self._backend = backends.resolve("auto", weight.device) if is_packed else None

    def with_backend(self, backend: Backend) -> RMSNorm:
        """Return the same norm, computed by this backend module, or by torch if it is not packed."""
        norm = copy.copy(self)
        norm._backend = backend if self._backend is not None else None
        return norm

    def __call__(self, x: Tensor) -> Tensor:
        kernels = torch_layers if self._backend is None else self._backend
        return kernels.rms_norm(x, self.weight, self.epsilon)


# H heads of queries, G heads of keys and of values, D numbers a head, d hidden numbers, F inner ones
@dataclass(frozen=True, slots=True)
class CausalLayer:
    """A layer: ``x + after(attention(norm(x)))``, then ``x + after(out(act(gate) * up))`` of its norm."""

    self_norm: RMSNorm
    qkv: Linear  # [(H + 2 G) D, d]: queries, keys, values
    query_norm: RMSNorm | None  # over D, before the rotary embedding
    key_norm: RMSNorm | None
    self_out: Linear  # [d, H D]
    after_self_norm: RMSNorm | None  # of what attention adds
    inner_norm: RMSNorm
    gate_up: Linear  # [2 F, d]: gates, then what they gate
    inner_out: Linear  # [d, F]
    after_inner_norm: RMSNorm | None  # of what the inner layers add
    window: int | None  # a row sees its last `window` positions, its own counted; None: all
    rotary: int  # which of the stack's tables

    def with_backend(self, backend: Backend) -> Self:
        """Return the same layer, computed by this backend module."""
        return replace(self, **_on_backend(self, backend))


@dataclass(frozen=True, slots=True)
class CausalStack:
    """A decoder-only transformer without its attention state and its output layer."""

    token_table: TokenTable
    embedding_scale: float
    layers: Sequence[CausalLayer]
    final_norm: RMSNorm
    num_heads: int  # H
    num_key_heads: int  # G
    head_size: int  # D
    activation: torch_layers.Activation  # of gates
    rotary: Sequence[RotaryTable]
    scale: float  # of queries times keys
    soft_cap: float | None  # scores become cap * tanh(score / cap)
    output_soft_cap: float | None  # and so do logits
    # computes embeddings, rotary embeddings and gates; None: torch does
    backend: Backend | None = None

    def with_backend(self, backend: Backend) -> Self:
        """Return the same stack, computed by this backend module if its layers are packed."""
        return replace(
            self,
            backend=backend if isinstance(self.layers[0].qkv, PackedLinear) else None,
            layers=[layer.with_backend(backend) for layer in self.layers],
            final_norm=self.final_norm.with_backend(backend),
        )

    @property
    def hidden_size(self) -> int:
        return self.final_norm.weight.shape[0]

    @property
    def kernels(self) -> Any:
        """The module that computes what is no linear layer and no norm."""
        return torch_layers if self.backend is None else self.backend

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the table."""
        table = self.token_table
        if isinstance(table, PackedLinear):
            return table.num_columns
        return len(table.q if isinstance(table, Quantised) else table)

    def embed(self, token: Tensor) -> Tensor:
        """Return hidden states [n, d] for tokens [n] int32."""
        weight, scale = token_table(self.token_table)
        # the operator adds positions, and here there are none
        none = self.final_norm.weight.new_zeros(1, self.hidden_size)
        return self.kernels.embed(
            token,
            torch.zeros_like(token),
            weight,
            scale,
            self.num_tokens,
            none,
            self.embedding_scale,
        )

    def turn(self, layer: CausalLayer, x: Tensor, position: Tensor) -> Tensor:
        """Return queries or keys x [n, heads, D] with the layer's rotary embedding of positions [n]."""
        table = self.rotary[layer.rotary]
        return self.kernels.rotary(x, position, table.cos, table.sin)

    def gate(self, x: Tensor) -> Tensor:
        """Return ``act(gates) * values`` [n, F], where ``x = [gates, values]`` [n, 2 F]."""
        return self.kernels.gated(x, self.activation)


def _on_backend(layer: CausalLayer, backend: Backend) -> dict[str, Any]:
    """Return those parts of a layer that are computed, with this backend module."""
    parts = {field.name: getattr(layer, field.name) for field in fields(layer)}
    return {
        name: part.with_backend(backend)
        for name, part in parts.items()
        if hasattr(part, "with_backend")
    }
