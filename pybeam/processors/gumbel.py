"""Gumbel noise that turns a beam search into sampling without replacement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.models.rows import Rows
from pybeam.processors.base import INF, INT, Processor

# multipliers of splitmix64 (Steele et al. 2014) as signed numbers, and of lowbias32 (Wellons 2018)
GOLDEN, MIX64 = -0x61C8864680B583EB, (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
MIX32 = (0x7FEB352D, -0x7B935975)


@dataclass(frozen=True)
class Gumbel(Processor):
    seed: int = 0
    stage = "log_probs"
    per_request: ClassVar = ("seed",)
    perturbs: ClassVar[bool] = True
    takes_slots: ClassVar = True
    # for every node: a hash of the seed and the tokens behind the prefix, and the log-probability of all
    # tokens; that of a prefix that is not scored is 0
    state: ClassVar = (torch.int64, torch.float32)

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"`seed` must be an int, but is {self.seed!r}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"`seed` must be 0 to 2**63 - 1, but is {self.seed}")

    def parameters(self) -> tuple[Tensor, ...]:
        return (torch.tensor(self.seed, dtype=torch.int64),)

    def perturbed(
        self, backend: Backend, log_probs: Tensor, rows: Rows, data: tuple[Tensor, ...]
    ) -> Tensor:
        """Do what `__call__` does, in the backend's kernels if it has some."""
        if backend.perturb is None:
            return self(log_probs, rows, data)
        tree, score = rows.tree, rows.beam_score
        given = tree.parent, tree.log_prob, rows.prefix_length, score
        places = rows.row_slot, rows.entry, rows.node, rows.token, rows.position
        return backend.perturb(log_probs, *data, *given, *places)

    def __call__(self, logits: Tensor, rows: Rows, data: tuple[Tensor, ...]) -> Tensor:
        seed, hashes, totals = data  # [S], [S, N], [S, N]
        slot, node = rows.row_slot.long(), rows.node.long()
        seed = seed.index_select(0, slot)  # [R]
        parent = rows.tree.parent[slot, node].long().clamp(min=0)
        is_behind = rows.num_generated > 0
        root = mixed(seed)
        own = mixed(hashes[slot, parent] + (rows.token.long() + 1) * GOLDEN)
        own = torch.where(is_behind, own, root)  # [R]
        is_start = rows.position == 0
        before = torch.where(is_start, 0.0, totals[slot, parent])
        total = before + rows.tree.log_prob[slot, node]
        hashes[slot, node], totals[slot, node] = own, total
        # the root's own noise is that of token -1, which no sequence holds
        of_root = gumbel_noise(root, torch.full((1,), -1, dtype=INT, device=slot.device))[:, 0]
        has_luck = is_behind & (total > -INF)
        luck = torch.where(has_luck, rows.score - total, of_root)[:, None]  # [R, 1]
        token = torch.arange(logits.shape[1], dtype=INT, device=slot.device)
        # in float64: the upper tail of the noise needs 31 bits
        perturbed = gumbel_noise(own, token).add_(logits)  # [R, V]
        largest = perturbed.amax(1, keepdim=True)
        largest = largest.masked_fill(largest == -INF, 0.0)
        excess = luck - perturbed + log1mexp(perturbed - largest)
        score = softplus(excess).neg_().add_(torch.where(is_behind, 0.0, of_root)[:, None])
        return score.to(logits.dtype)


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


def gumbel(seed: int = 0) -> Gumbel:
    """Add noise that turns a beam search into sampling without replacement.

    ``phi(y)`` is the log-probability of the tokens y so far, and ``G(y)`` the score of the row. Every
    continuation first gets ``G'(yv) = phi(yv) + g``, where g is a Gumbel(0) number of its own. Then

    ``G(yv) = -log(exp(-G(y)) - exp(-max_w G'(yw)) + exp(-G'(yv)))``

    so that the largest of them is ``G(y)``. The search ranks by these numbers. ``G`` of the start is a
    Gumbel(0) number too, so that scores fit the paper's estimators. (The paper's algorithm 1 sets it to 0,
    which shifts all scores alike.) All numbers are a hash of the seed, the tokens behind the forced prefix,
    and v. They depend on nothing else, and requests with the same seed share them.

    Stage "log_probs"; it must be the last processor. Per request: the seed. Sampling is exact with
    `pybeam.stochastic_beam`. Other algorithms may drop hypotheses that would have been drawn.
    `Hypothesis.score` and `log_probs` are those of the model, `final_score` is ``G``.

    CTranslate2's beam search with `sampling_topk` draws new noise in every step and does not condition it.

    Args:
        seed: 0 to 2**63 - 1.

    Raises:
        TypeError, ValueError: the seed is no such number.

    See Kool, van Hoof and Welling 2019.
    """
    return Gumbel(seed)
