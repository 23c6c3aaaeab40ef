"""A mixture of experts in place of inner layers: every row is computed by a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends import Backend
from pybeam.models.linear import GatedLinear, Linear


class Expert(NamedTuple):
    """``out(act(g) * u)`` [n, d], where ``[g, u] = W x``."""

    inner: GatedLinear
    out: Linear


class Experts:
    """``sum_e p_e expert_e(x)`` over the experts that a router prefers, where p = softmax(router(x)).

    It stands where the last layer of a sublayer stands. A row's result depends on no other row: experts are
    added in their order, and each computes its rows alone.

    Args:
        router: [E, d].
        experts: E of them.
        num_chosen: for every row.
        is_normalised: whether the shares of a row's experts sum to 1.
    """

    activation = None

    def __init__(
        self, router: Linear, experts: Sequence[Expert], num_chosen: int, is_normalised: bool
    ) -> None:
        self.router, self.experts = router, experts
        self.num_chosen, self.is_normalised = num_chosen, is_normalised

    def with_backend(self, backend: Backend) -> Experts:
        """Return the same experts, computed by this backend module."""
        experts = [
            Expert(one.inner.with_backend(backend), one.out.with_backend(backend))
            for one in self.experts
        ]
        router = self.router.with_backend(backend)
        return Experts(router, experts, self.num_chosen, self.is_normalised)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the mixture [n, d] of rows x [n, d]."""
        logits = self.router(x)  # [n, E]
        wide = logits if logits.dtype == torch.float64 else logits.float()
        share, chosen = wide.softmax(-1).topk(self.num_chosen, -1)  # [n, k]
        if self.is_normalised:
            share = share / share.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for e in chosen.unique().tolist():
            row, place = (chosen == e).nonzero(as_tuple=True)
            inner, out = self.experts[e]
            own = out(inner(x[row])) * share[row, place, None].to(x.dtype)
            y.index_add_(0, row, own)
        return y

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """Add the mixture to a residual [n, d], whose memory is used for the sum."""
        return residual.add_(self(x))

    def without_bias(self, x: Tensor) -> tuple[Tensor, None]:
        """Return the mixture, to which no bias is to be added."""
        return self(x), None


def unchanged(x: Tensor) -> Tensor:
    """Return what it is given: the experts read what the inner layers would."""
    return x
