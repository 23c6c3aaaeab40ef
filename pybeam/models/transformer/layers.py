"""The parts of a transformer that hold weights: norms, layers, and embeddings with their layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.models.linear import Linear, PackedLinear


class Norm:
    """Layer normalisation, through the C++ extension where the linear layers are (`can_pack`)."""

    def __init__(
        self, weight: Tensor, bias: Tensor, epsilon: float = 1e-5, *, is_native: bool = False
    ) -> None:
        self._shape, self.weight, self.bias, self.epsilon = weight.shape, weight, bias, epsilon
        self._native = torch.ops.pybeam.layer_norm.default if is_native else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._native is not None:
            return self._native(x, self.weight, self.bias, self.epsilon)
        return F.layer_norm(x, self._shape, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    self_norm: Norm
    qkv: Linear  # [3 d, d]
    self_out: Linear
    inner_norm: Norm
    inner: Linear  # with the activation
    inner_out: Linear


@dataclass(frozen=True, slots=True)
class DecoderLayer(EncoderLayer):
    cross_norm: Norm
    cross_query: Linear
    cross_out: Linear


@dataclass(frozen=True, slots=True)
class Stack:
    """The encoder or the decoder without its attention state."""

    # [V, d]; the output layer, where it has the same table; None of an encoder that reads no tokens
    token_table: Tensor | PackedLinear | None
    position_table: Tensor  # [positions, d], row i for the i-th token
    embedding_scale: float
    embedding_norm: Norm | None
    layers: Sequence[EncoderLayer]
    final_norm: Norm | None
    num_heads: int

    def embed(self, token: Tensor, position: Tensor) -> Tensor:
        """Hidden state [n, d] of tokens [n] at these positions [n]."""
        table = self.token_table
        y = table.rows(token) if isinstance(table, PackedLinear) else F.embedding(token, table)
        return self.place(y, position)

    def place(self, y: Tensor, position: Tensor) -> Tensor:
        """Hidden state [n, d] of what is embedded as y [n, d] at these positions [n]."""
        x = F.embedding(position, self.position_table)  # [n, d]
        x.add_(y, alpha=self.embedding_scale)
        return x if self.embedding_norm is None else self.embedding_norm(x)
