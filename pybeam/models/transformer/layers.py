"""The parts of a transformer that hold weights: norms, layers, and embeddings with their layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, Self, TypeVar

import torch.nn.functional as F
from torch import Tensor

from pybeam import backends
from pybeam.backends import Backend, torch_layers
from pybeam.backends.packing import Quantised
from pybeam.models.linear import GatedLinear, Linear, PackedLinear
from pybeam.models.norms import RMSNorm
from pybeam.models.transformer.relative import RelativeBias

# [V, d]: as it is, or the output layer where that has the same table
TokenTable = Tensor | Quantised | PackedLinear


class Norm:
    """Layer normalisation. A backend computes it if the linear layers are packed for one (`can_pack`)."""

    def __init__(
        self, weight: Tensor, bias: Tensor, epsilon: float = 1e-5, *, is_packed: bool = False
    ) -> None:
        self.weight, self.bias, self.epsilon = weight, bias, epsilon
        self._backend = backends.resolve("auto", weight.device) if is_packed else None

    def with_backend(self, backend: Backend) -> Norm:
        """Return the same norm, computed by this backend module, or by torch if it is not packed."""
        norm = copy.copy(self)
        norm._backend = backend if self._backend is not None else None
        return norm

    def __call__(self, x: Tensor) -> Tensor:
        kernels = torch_layers if self._backend is None else self._backend
        return kernels.layer_norm(x, self.weight, self.bias, self.epsilon)


AnyNorm = Norm | RMSNorm


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    self_norm: AnyNorm
    qkv: Linear  # [3 H D, d]
    self_out: Linear
    inner_norm: AnyNorm
    inner: Linear | GatedLinear  # with the activation
    inner_out: Linear

    def with_backend(self, backend: Backend) -> Self:
        """Return the same layer, computed by this backend module."""
        names = [field.name for field in fields(self)]
        return replace(self, **{name: getattr(self, name).with_backend(backend) for name in names})

    def with_cross(self, norm: AnyNorm, query: Linear, out: Linear) -> DecoderLayer:
        """Return a decoder's layer: this one, and attention over encoder states."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return DecoderLayer(**own, cross_norm=norm, cross_query=query, cross_out=out)


@dataclass(frozen=True, slots=True)
class DecoderLayer(EncoderLayer):
    cross_norm: AnyNorm
    cross_query: Linear
    cross_out: Linear


def token_table(table: TokenTable) -> tuple[Tensor, Tensor | None]:
    """Return the weights of a table as `embed` takes them, and the scale [V] of int8."""
    if isinstance(table, PackedLinear):
        return table.packed[:2]
    return table if isinstance(table, Quantised) else (table, None)


Layer = TypeVar("Layer", bound=EncoderLayer)


@dataclass(frozen=True, slots=True)
class Stack(Generic[Layer]):
    """The encoder or the decoder without its attention state."""

    # None for an encoder that reads no tokens
    token_table: TokenTable | None
    position_table: (
        Tensor  # [positions, d], row i for the i-th token; without rows nothing is added
    )
    embedding_scale: float
    embedding_norm: Norm | None
    layers: Sequence[Layer]
    final_norm: AnyNorm | None
    num_heads: int
    head_size: int
    scale: float  # of queries times keys
    # of each layer's self-attention, if positions are relative
    relative: Sequence[RelativeBias] = ()
    # computes embeddings; None: torch does
    backend: Backend | None = None

    def with_backend(self, backend: Backend) -> Stack[Layer]:
        """Return the same stack, computed by this backend module if its layers are packed."""
        return replace(
            self,
            backend=backend if self.is_packed else None,
            embedding_norm=self.embedding_norm and self.embedding_norm.with_backend(backend),
            layers=[layer.with_backend(backend) for layer in self.layers],
            final_norm=self.final_norm and self.final_norm.with_backend(backend),
        )

    @property
    def is_packed(self) -> bool:
        """Whether a backend computes the layers. There may be none."""
        return any(isinstance(layer.qkv, PackedLinear) for layer in self.layers[:1])

    @property
    def hidden_size(self) -> int:
        return self.position_table.shape[1]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the table, which must be there."""
        table = self.token_table
        if isinstance(table, PackedLinear):
            return table.num_columns
        assert table is not None
        return len(table.q if isinstance(table, Quantised) else table)

    def embed(self, token: Tensor, position: Tensor) -> Tensor:
        """Return hidden states [n, d] for tokens [n] at these positions [n], both int32."""
        table = self.token_table
        assert table is not None
        kernels = torch_layers if self.backend is None else self.backend
        weight, scale = token_table(table)
        x = kernels.embed(
            token,
            position,
            weight,
            scale,
            self.num_tokens,
            self.position_table,
            self.embedding_scale,
        )  # [n, d]
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def place(self, y: Tensor, position: Tensor) -> Tensor:
        """Return hidden states [n, d] for embeddings y [n, d] at these positions [n]."""
        x = F.embedding(position, self.position_table)  # [n, d]
        x.add_(y, alpha=self.embedding_scale)
        return x if self.embedding_norm is None else self.embedding_norm(x)
