"""Plain torch in place of kernels that a backend does not have, on any device.

`pybeam.backends.Backend` states the contracts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pybeam.contracts import NewNodes

INF = float("inf")
HALVES = (torch.bfloat16, torch.float16)
E4M3 = torch.float8_e4m3fn
LARGEST_E4M3 = torch.finfo(E4M3).max


def log_softmax(logits: Tensor) -> Tensor:
    """Compute log-probabilities [R, V], in float32 at least. A row that allows no token stays -inf."""
    if logits.dtype in HALVES:
        logits = logits.float()
    is_dead = logits.amax(1, keepdim=True) == -INF
    return torch.log_softmax(logits, 1).masked_fill_(is_dead, -INF)


# the parameters are those of the kernel, which takes arrays one by one
def restore_log_probs(
    log_prob: Tensor,
    parent: Tensor,
    token: Tensor,
    row_log_probs: Tensor,
    is_alive: Tensor,
    prefix_length: Tensor,
    slot: Tensor,
    offset: Tensor,
    position: Tensor,
) -> Tensor:
    """Return what survivors [A, C] add to the log-probability of a hypothesis, in place of `log_prob`.

    Held entries do not change, nor do rows within a prefix.

    Args:
        log_prob, parent, token: [A, C], of the survivors; `log_prob` is what has ranked them.
        row_log_probs: [R, V], of the rows.
        is_alive: [S, K] bool, which entries of the beams are rows.
        prefix_length: [S] int32.
        slot: [A] int32.
        offset: [A + 1] int32, rows of the a-th beam are offset[a] .. offset[a + 1].
        position: [R] int32, tokens before each row.
    """
    i, parent = slot.long()[:, None], parent.clamp(min=0).long()  # [A, 1], [A, C]
    alive = is_alive[slot.long()]  # [A, K]
    row_of = offset[:-1, None] + alive.cumsum(1) - 1
    row = row_of.gather(1, parent).clamp(min=0, max=row_log_probs.shape[0] - 1)  # [A, C]
    own = row_log_probs[row, token.clamp(min=0).long()]
    is_new = alive.gather(1, parent) & (token >= 0) & (position[row] >= prefix_length[i])
    return torch.where(is_new, own.to(log_prob.dtype), log_prob)


def rounded_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x [n, in] as E4M3 p and a scale [n] float32, ``x ~ p * scale``."""
    wide = x.float()
    largest = wide.abs().amax(1) if x.shape[1] else wide.new_zeros(len(x))
    # by a number torch does not divide on a GPU, it multiplies by the inverse
    scale = largest / torch.full_like(largest, LARGEST_E4M3)
    scale = scale.masked_fill(scale == 0, 1.0)
    return (wide / scale[:, None]).to(E4M3), scale


def write_nodes(
    scatter_rows: Callable[[Tensor, Tensor, Tensor], None],
    key: Tensor,
    value: Tensor,
    new: NewNodes,
) -> None:
    """Write keys and values of new nodes, rounded to the pools' dtype, to their cells in [cells, G, D]."""
    scatter_rows(key, new.cell, new.key.to(key.dtype))
    scatter_rows(value, new.cell, new.value.to(value.dtype))


def no_program(weights: tuple[Tensor, ...], shape: Any) -> None:
    """There is no object for a stack: its layers are put together from the functions of the backend."""
