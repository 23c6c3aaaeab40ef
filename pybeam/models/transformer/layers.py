"""The parts of a transformer that hold weights: layers, and embeddings with their layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends import Backend, torch_layers
from pybeam.backends.packing import Quantised
from pybeam.models.linear import GatedLinear, Linear, PackedLinear
from pybeam.models.transformer.norms import Norm, Norms, Part

if TYPE_CHECKING:
    from pybeam.models.transformer.experts import Experts
    from pybeam.models.transformer.relative import RelativeBias
    from pybeam.models.transformer.rotary import RotaryTable

# [V, d]: as it is, or the output layer where that has the same table
TokenTable = Tensor | Quantised | PackedLinear


# H heads of queries, G heads of keys and of values, D numbers a head, d hidden numbers, F inner ones
@dataclass(frozen=True, slots=True)
class Cross(Part):
    """Attention over encoder states."""

    norms: Norms
    query: Linear  # [H D, d]
    out: Linear  # [d, H D]


@dataclass(frozen=True, slots=True)
class Layer(Part):
    """Attention, attention over encoder states in a decoder that has an encoder, and inner layers."""

    self_norms: Norms
    qkv: Linear  # [(H + 2 G) D, d]: queries, keys, values
    self_out: Linear  # [d, H D]
    inner_norms: Norms
    inner: Linear | GatedLinear | Callable[[Tensor], Tensor]  # with the activation
    inner_out: Linear | Experts  # [d, F]
    cross: Cross | None = None
    query_norm: Norm | None = None  # over D, before the rotary embedding
    key_norm: Norm | None = None
    window: int | None = None  # a row sees its last `window` positions, its own counted; None: all
    rotary: int | None = None  # which of the stack's tables
    relative: RelativeBias | None = None  # of scores, by distance

    @property
    def linears(self) -> list[Any]:
        """All parts of the layer that a program would have to know, norms left out."""
        inner = self.inner.linear if isinstance(self.inner, GatedLinear) else self.inner
        cross = [] if self.cross is None else [self.cross.query, self.cross.out]
        return [self.qkv, self.self_out, *cross, inner, self.inner_out]


def token_table(table: TokenTable) -> tuple[Tensor, Tensor | None]:
    """Return the weights of a table as `embed` takes them, and the scale [V] of int8."""
    if isinstance(table, PackedLinear):
        return table.packed[:2]
    return table if isinstance(table, Quantised) else (table, None)


@dataclass(frozen=True, slots=True)
class Stack:
    """An encoder or a decoder without its attention state and its output layer."""

    # None for an encoder that reads no tokens
    token_table: TokenTable | None
    # [positions, d], row i for the i-th token; without rows nothing is added
    position_table: Tensor
    layers: Sequence[Layer]
    num_heads: int  # H
    num_key_heads: int  # G
    head_size: int  # D
    scale: float  # of queries times keys
    embedding_scale: float = 1.0
    embedding_norm: Norm | None = None
    final_norm: Norm | None = None
    # inner layers read what attention reads, and both add to that
    is_parallel: bool = False
    soft_cap: float | None = None  # scores become cap * tanh(score / cap)
    output_soft_cap: float | None = None  # and so do logits
    skipped_id: int = -1  # a token whose positions are the second half of the table; -1: none
    rotary: Sequence[RotaryTable] = ()
    # computes embeddings and rotary embeddings; None: torch does
    backend: Backend | None = None

    def with_backend(self, backend: Backend) -> Stack:
        """Return the same stack, computed by this backend module if that takes its layers."""
        # there may be no layers
        is_packed = any(isinstance(layer.qkv, PackedLinear) for layer in self.layers[:1])
        return replace(
            self,
            backend=backend if is_packed or backend.takes_plain else None,
            embedding_norm=self.embedding_norm and self.embedding_norm.with_backend(backend),
            layers=[layer.with_backend(backend) for layer in self.layers],
            final_norm=self.final_norm and self.final_norm.with_backend(backend),
        )

    @property
    def hidden_size(self) -> int:
        return self.position_table.shape[1]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the table; 0: there is none."""
        table = self.token_table
        if isinstance(table, PackedLinear):
            return table.num_columns
        return 0 if table is None else len(table.q if isinstance(table, Quantised) else table)

    @property
    def kernels(self) -> Any:
        """The module that computes what is no linear layer and no norm."""
        return torch_layers if self.backend is None else self.backend

    @property
    def has_distances(self) -> bool:
        """Whether attention depends on distances between tokens."""
        return any(layer.window is not None or layer.relative is not None for layer in self.layers)

    def following(self, i: int) -> Norm | None:
        """Return the norm before layer i, or the final norm behind all layers."""
        return self.layers[i].self_norms.before if i < len(self.layers) else self.final_norm

    def begun(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states x [n, d], and their norm [n, d] that the first layer reads."""
        norm = self.following(0)
        return x, x if norm is None else norm(x)

    def embed(self, backend: Backend, token: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `begun` does, for tokens [n] at these rows [n] of the position table, both int32."""
        table = self.token_table
        assert table is not None
        weight, scale = token_table(table)
        if backend.embed_norm is not None and weight.ndim == 2 and scale is None:
            facts = weight, self.position_table, self.embedding_scale, self.skipped_id
            norms = [norm and norm.parts for norm in (self.embedding_norm, self.following(0))]
            return backend.embed_norm(token, place, *facts, norms)
        if self.skipped_id >= 0:
            num_positions = len(self.position_table) // 2
            place = torch.add(place, token == self.skipped_id, alpha=num_positions)
        given = token, place, weight, scale, self.num_tokens, self.position_table
        x = self.kernels.embed(*given, self.embedding_scale)  # [n, d]
        return self.begun(x if self.embedding_norm is None else self.embedding_norm(x))

    def place(self, y: Tensor, position: Tensor) -> Tensor:
        """Return hidden states [n, d] for embeddings y [n, d] at these positions [n]."""
        x = F.embedding(position, self.position_table)  # [n, d]
        x.add_(y, alpha=self.embedding_scale)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def project(self, layer: Layer, y: Tensor, place: Tensor | None) -> tuple[Tensor, ...]:
        """Return queries [n, H, D], keys and values [n, G, D] of normalised states y [n, d].

        `place` [n] int32 are the rows of rotary tables.
        """
        qkv = layer.qkv(y).unflatten(1, (-1, self.head_size))
        heads, key_heads = self.num_heads, self.num_key_heads
        norms, angles = None, None
        if layer.query_norm is not None and layer.key_norm is not None:
            norms = layer.query_norm.parts, layer.key_norm.parts
        if layer.rotary is not None:
            table = self.rotary[layer.rotary]
            angles = place, table.cos, table.sin
        if norms is None and angles is None:
            return qkv.split((heads, key_heads, key_heads), 1)
        both, value = qkv.split((heads + key_heads, key_heads), 1)
        return *self.kernels.turn_heads(both, heads, norms, angles), value
