"""`LayerProgram`: the layers of a transformer in one object, for backends that have it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class StackShape(NamedTuple):
    """The shapes and facts of a stack, in the order in which a backend takes them."""

    num_layers: int
    inner_size: int
    activation: int  # `Activation` behind the inner layer
    is_pre_norm: bool  # a sublayer is x + f(norm(x)), else norm(x + f(x))
    has_cross: bool  # a decoder's layers attend over encoder states
    epsilon: float  # of all norms
    num_heads: int
    scale: float  # of queries times keys
    num_columns: int  # of the output layer; 0: there is none
    embedding_scale: float
    num_tokens: int  # of the token table; 0: there is none


class LayerProgram(Protocol):
    """Embeddings, layers, final norm and output layer of a stack, with weights that are checked once."""

    def run(
        self,
        out: Tensor,
        inputs: Tensor | tuple[Tensor, Tensor],
        own_pool: Tensor | None,
        cross_pool: Tensor | None,
        cell: Tensor | None,
        own_cells: tuple[Tensor, ...],
        cross_cells: tuple[Tensor, ...],
        /,
    ) -> None:
        """Compute `out` [R, V], or [R, d] without an output layer.

        `inputs` are tokens and positions, both [R] int32, or x [R, d], which is overwritten. A decoder writes
        keys and values to `cell` [R] of `own_pool` [layers, cells, 2, H, D]. Without a pool rows attend over
        rows. `Cells.given` says what each row sees.
        """
