"""The layers of a model in plain torch, for packed weights. `native` has operators for them.

Results equal those of the operators up to rounding. The last bits of a row may depend on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.packing import unpack

INF = float("inf")


class Activation(IntEnum):
    """The function behind a linear layer, as the operator `linear` numbers them."""

    NONE = 0
    RELU = 1
    GELU = 2
    TANH_GELU = 3
    SILU = 4
    TANH = 5


FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.NONE: lambda x: x,
    Activation.RELU: F.relu,
    Activation.GELU: F.gelu,
    Activation.TANH_GELU: lambda x: F.gelu(x, approximate="tanh"),
    Activation.SILU: F.silu,
    Activation.TANH: torch.tanh,
}


def linear(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: int, adds: bool
) -> None:
    """Compute out [n, out] = act(x W^T + b), or out + x W^T + b if it `adds`. x is [n, in], W is packed."""
    rows = torch.arange(out.shape[1], device=weight.device)
    if weight.dtype == torch.bfloat16:
        x = x.bfloat16()  # to nearest, ties to even
    y = F.linear(x.float(), unpack(weight, rows, x.shape[1]).float(), bias)  # [n, out]
    if adds:
        out.add_(y)
    else:
        out.copy_(FUNCTIONS[Activation(activation)](y))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Compute ``(x - mean) / sqrt(variance + epsilon) * weight + bias`` for every row of x [n, d]."""
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)


def glu(x: Tensor) -> Tensor:
    """Compute ``a * sigmoid(g)`` [n, d], where ``x = [a, g]`` [n, 2 d]."""
    return F.glu(x, 1)


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden and cell state [n, H], from gates i, f, g and o [n, 4 H] and the last cell state."""
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def mixture(out: Tensor, logits: Sequence[Tensor]) -> None:
    """Compute out [R, V] = ``log(1 / n * sum_i softmax(logits[i]))`` of n tensors [R, V], in its own dtype.

    It is a log-sum-exp, so that a token that all members find improbable keeps its log-prob. A member whose
    row is all -inf gives no token any probability. A row that holds NaN or +inf in one member holds NaN.
    """
    for i, own in enumerate(logits):
        own = own.to(out.dtype)  # [R, V]
        norm = own.logsumexp(1, keepdim=True)  # [R, 1]
        log_prob = own - norm.masked_fill_(norm == -INF, 0.0)
        if i == 0:
            out.copy_(log_prob)
        else:
            torch.logaddexp(out, log_prob, out=out)
    out.sub_(math.log(len(logits)))
