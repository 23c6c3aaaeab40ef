"""`LayerProgram`: the layers of a transformer in one object, for backends that have it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor


class StackShape(NamedTuple):
    """The shapes and facts of a stack, in the order in which a backend takes them."""

    inner_size: int
    activation: int  # `Activation` behind the inner layer, or of gates
    is_gated: bool  # inner layers have twice the columns: gates, then what they gate
    is_parallel: bool  # inner layers read what attention reads, and both add to that
    has_cross: bool  # a decoder's layers attend over encoder states
    epsilon: float  # of all norms
    num_heads: int
    num_key_heads: int
    head_size: int
    scale: float  # of queries times keys
    soft_cap: float  # of scores; 0: none
    output_soft_cap: float  # of logits; 0: none
    num_columns: int  # of the output layer; 0: there is none
    embedding_scale: float
    num_tokens: int  # of the token table; 0: there is none
    skipped_id: int  # a token whose positions are the second half of the table; -1: none
    bias_origin: int  # the column of position biases for distance 0
    num_tables: int  # of rotary embeddings
    window: list[int]  # by layer; 0: none
    rotary: list[int]  # by layer, which table; -1: none


class LayerProgram(Protocol):
    """Embeddings, layers, final norm and output layer of a stack, with weights that are checked once."""

    # the parameters are what one call hands to C++, in its order
    def run(
        self,
        out: Tensor | None,
        inputs: Tensor | tuple[Tensor, Tensor],
        own_pool: Tensor | None,
        cross_pool: Tensor | None,
        cell: Tensor | None,
        own_cells: tuple[Tensor, ...],
        source_cells: tuple[Tensor, ...],
        position: Tensor | None,
        cell_position: Tensor | None,
        /,
    ) -> None:
        """Compute `out` [R, V], or [R, d] without an output layer; without `out`, what goes to pools alone.

        More rows of `out` stay as they are.

        `inputs` are tokens and their rows in the tables of positions, both [R] int32, or x [R, d], which is
        overwritten. A decoder writes keys and values to `cell` [R] of `own_pool` [layers, cells, 2, G, D].
        Rows of an encoder attend over rows. If its output layer gives keys and values of a decoder, they go
        to `cell` [R] of `cross_pool`. `Cells.given` says what each row sees. `position` [R] and
        `cell_position` [cells], both int32, are needed where layers have windows or position biases; a
        decoder writes the positions of rows to `cell`, and in an encoder both are of rows. Rows with a
        position alone are those of prompts, and see what `prompt_attention` lets them see.

        `source_cells` are the cells of encoder states in `cross_pool`. Without such a pool they may be those
        of prompts in `own_pool`, counted from its end, and the last token [S] of each prompt, which stands
        for the start token, and the row [S] of its position 0 in tables. Then all positions are counted
        behind the prompts, which all rows see first.
        """


class LayerCall(NamedTuple):
    """The call of a decoder in one step. `BeamProgram.run` makes it again for the rows of the next steps."""

    program: LayerProgram
    arguments: tuple[Any, ...]  # of `LayerProgram.run`
