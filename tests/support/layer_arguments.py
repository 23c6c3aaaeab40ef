"""Arguments of the operator `run_layers`, for a decoder of one tiny layer."""

from __future__ import annotations

import torch

D, INNER, HEADS, VOCAB, CELLS = 8, 12, 2, 70, 5
NONE = torch.empty(0)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def weights() -> list[torch.Tensor]:
    """Of a decoder of one layer: final norm, output, then the layer."""
    norm = [torch.ones(D), torch.zeros(D)]

    def linear(columns: int, depth: int) -> list[torch.Tensor]:
        return [torch.randn(-(-columns // 64), depth, 64), NONE, torch.zeros(columns)]

    attention = [*norm, *linear(3 * D, D), *linear(D, D), *norm, *linear(D, D), *linear(D, D)]
    return [*norm, *linear(VOCAB, D), *attention, *norm, *linear(INNER, D), *linear(D, INNER)]


def layer_arguments() -> dict:
    """Two rows of the source in slot 1."""
    pool = (1, CELLS, 2, HEADS, D // HEADS)
    cells = [ints(0, 2), ints(1), ints(0, 0, 1, 2).view(2, 2), ints(0, 2)]
    mask, entry = torch.full((2, 2, 1), 3), ints(0, 1)
    return dict(
        out=torch.zeros(2, VOCAB),
        x=torch.randn(2, D),
        weights=weights(),
        num_layers=1,
        inner_size=INNER,
        activation=1,
        is_pre_norm=True,
        epsilon=1e-5,
        num_heads=HEADS,
        scale=0.5,
        own_pool=torch.zeros(pool),
        cross_pool=torch.randn(pool),
        cell=ints(1, 2),
        own_cells=[*cells, mask, entry],
        cross_cells=cells,
    )
