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
) -> tuple[Tensor, Tensor]:
    """Return queries [n, H, D] and keys [n, G, D], with their norms and turned. Heads may be overwritten.

    Args:
        norm, turn: `rms_norm` and `rotary` of the backend.
        heads: [n, H + G, D], where the heads of a row lie one behind another; those of queries come first.
        num_heads: H.
        norms: those of queries and of keys, with a bias layer norms; None: heads stay as they are.
        angles: by which the first numbers of each head turn, twice as many as there are angles of a row;
            None: no head turns.
    """
    query, key = heads[:, :num_heads], heads[:, num_heads:]
    if norms is not None:
        query, key = (_normed(norm, *pair) for pair in zip((query, key), norms, strict=True))
    if angles is not None:
        query, key = (_turned(turn, x, angles) for x in (query, key))
    return query, key


def _normed(norm: Callable[[Tensor, Tensor, float], Tensor], x: Tensor, parts: Parts) -> Tensor:
    weight, bias, epsilon = parts
    if bias is None:
        return norm(x, weight, epsilon)
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)


def _turned(
    turn: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], x: Tensor, angles: Angles
) -> Tensor:
    size = 2 * angles[1].shape[1]
    turned = turn(x[..., :size], *angles)
    return turned if size == x.shape[-1] else torch.cat((turned, x[..., size:]), -1)
