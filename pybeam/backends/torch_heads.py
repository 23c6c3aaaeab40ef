"""Norms and rotary embeddings of queries and keys, from the functions of a backend or in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# weight [D], bias [D] and epsilon, as `Norm.parts`
Parts = tuple[Tensor, Tensor | None, float]
# positions of rows [n] int32, and cosines and sines [positions, D / 2] float32
Angles = tuple[Tensor, Tensor, Tensor]


def rotary(x: Tensor, position: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs ``(x[i], x[i + D / 2])`` of every head of x [n, heads, D] by the angles of its position.

    ``[a, b]`` becomes ``[a cos - b sin, b cos + a sin]``, with rows position [n] int32 of cos and sin
    [positions, D / 2] float32.
    """
    a, b = x.chunk(2, -1)  # [n, heads, D / 2]
    c, s = (table[position.long()][:, None].to(x.dtype) for table in (cos, sin))
    return torch.cat((a * c - b * s, b * c + a * s), -1)


def turn_heads(
    norm: Callable[[Tensor, Tensor, float], Tensor],
    turn: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    heads: Tensor,
    num_heads: int,
    norms: Sequence[Parts] | None,
    angles: Angles | None,
) -> None:
    """Replace heads of queries and of keys by their norms, and turn these.

    Args:
        norm, turn: `rms_norm` and `rotary` of the backend.
        heads: [n, H + G, D], where the heads of a row lie one behind another; those of queries come first.
        num_heads: H.
        norms: those of queries and of keys, with a bias layer norms; None: heads stay as they are.
        angles: by which the first numbers of each head turn, twice as many as there are angles of a row;
            None: no head turns.
    """
    for i, x in enumerate(heads.tensor_split((num_heads,), 1)):
        if norms is not None:
            weight, bias, epsilon = norms[i]
            if bias is None:
                x.copy_(norm(x, weight, epsilon))
            else:
                x.copy_(F.layer_norm(x, weight.shape, weight, bias, epsilon))
        if angles is not None:
            turned = x[..., : 2 * angles[1].shape[1]]
            turned.copy_(turn(turned, *angles))
