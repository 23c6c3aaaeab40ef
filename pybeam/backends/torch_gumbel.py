"""Gumbel noise in plain torch, and the scores that it gives candidates; see `pybeam.processors.gumbel`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

INF = math.inf
INT = torch.int32
# multipliers of splitmix64 (Steele et al. 2014) as signed numbers, and of lowbias32 (Wellons 2018)
GOLDEN, MIX64 = -0x61C8864680B583EB, (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
MIX32 = (0x7FEB352D, -0x7B935975)


# the parameters are those of the kernel, which takes arrays one by one
def perturb(
    log_probs: Tensor,
    seed: Tensor,
    hashes: Tensor,
    totals: Tensor,
    parent: Tensor,
    node_log_prob: Tensor,
    prefix_length: Tensor,
    score: Tensor,
    slot: Tensor,
    entry: Tensor,
    node: Tensor,
    token: Tensor,
    position: Tensor,
) -> Tensor:
    """Return the perturbed scores [R, V] of log-probabilities [R, V], and write the state of the rows.

    Args:
        log_probs: of the rows.
        seed: [S] int64.
        hashes, totals: [S, N], the state: a hash of each node's tokens, and their log-probability.
        parent, node_log_prob: [S, N], of the token trees.
        prefix_length: [S] int32.
        score: [S, K] float32, of the beams.
        slot, entry, node, token, position: [R] int32, of the rows.
    """
    slot, node = slot.long(), node.long()
    seed = seed.index_select(0, slot)  # [R]
    parent = parent[slot, node].long().clamp(min=0)
    is_behind = position > prefix_length[slot]
    root = mixed(seed)
    own = mixed(hashes[slot, parent] + (token.long() + 1) * GOLDEN)
    own = torch.where(is_behind, own, root)  # [R]
    before = torch.where(position == 0, 0.0, totals[slot, parent])
    total = before + node_log_prob[slot, node]
    hashes[slot, node], totals[slot, node] = own, total
    # the root's own noise is that of token -1, which no sequence holds
    of_root = gumbel_noise(root, torch.full((1,), -1, dtype=INT, device=slot.device))[:, 0]
    has_luck = is_behind & (total > -INF)
    luck = torch.where(has_luck, score[slot, entry.long()] - total, of_root)[:, None]  # [R, 1]
    column = torch.arange(log_probs.shape[1], dtype=INT, device=slot.device)
    # in float64: the upper tail of the noise needs 31 bits
    perturbed = gumbel_noise(own, column).add_(log_probs)  # [R, V]
    largest = perturbed.amax(1, keepdim=True)
    largest = largest.masked_fill(largest == -INF, 0.0)
    excess = luck - perturbed + log1mexp(perturbed - largest)
    found = softplus(excess).neg_().add_(torch.where(is_behind, 0.0, of_root)[:, None])
    return found.to(log_probs.dtype)


def gumbel_noise(key: Tensor, token: Tensor) -> Tensor:
    """Make Gumbel(0) numbers [R, n] float64 from the rows' keys [R] int64 and tokens [n] int32.

    They are ``-log(-log(1 - u))``. u has 31 random bits, so that the upper tail, which decides, is fine.
    """
    words = key.contiguous().view(INT).view(-1, 2)
    bits = _mixed32(token) ^ words[:, :1]  # [R, n]
    bits *= words[:, 1:] | 1
    bits = _mixed32(bits) & 0x7FFFFFFF
    uniform = bits.double().add_(0.5).mul_(2.0**-31)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def log1mexp(x: Tensor) -> Tensor:
    """Compute ``log(1 - exp(x))`` for x <= 0. See Mächler 2012."""
    return torch.where(x > -math.log(2), x.expm1().neg_().log_(), x.exp().neg_().log1p_())


def softplus(x: Tensor) -> Tensor:
    """Compute ``log(1 + exp(x))``. The rounding of torch's own depends on an element's place in memory."""
    return x.abs().neg_().exp_().log1p_().add_(x.clamp(min=0.0))


def mixed(x: Tensor) -> Tensor:
    """The finaliser of splitmix64: a bijection of int64 in which every bit depends on every bit."""
    x = x + GOLDEN
    x = (x ^ _shifted(x, 30)) * MIX64[0]
    x = (x ^ _shifted(x, 27)) * MIX64[1]
    return x ^ _shifted(x, 31)


def _mixed32(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 16)) * MIX32[0]
    x = (x ^ _shifted(x, 15)) * MIX32[1]
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shift to the right and fill with zeros."""
    size = 8 * x.element_size()
    return (x >> by) & ((1 << (size - by)) - 1)
