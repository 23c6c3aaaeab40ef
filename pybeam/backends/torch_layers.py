"""The layers of a model in plain torch, for packed weights. `native` has operators for them.

Results equal those of the operators up to rounding. The last bits of a row may depend on its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.packing import LARGEST, NUM_LARGE, unpack

INF = float("inf")
# of a prompt, whose scores are in memory at a time
PROMPT_ROWS = 256


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


# rows of smaller numbers count as zero: the inverse of their scale is no float32
LEAST_MAGNITUDE = 2.0**-100


# the operator's signature
def linear(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    activation: int,
    adds: bool,
) -> None:
    """Compute out [n, out] = act(x W^T + b), or out + x W^T + b if it `adds`. x is [n, in], W is packed.

    Weights in int8 have a `scale` [out]. x becomes int8 too, row by row (`quantise_rows`); the sums of
    integers are exact: ``x W^T = q q_W^T * (scale of the row * scale)``. Packed as int8, not as uint8, they
    say that the largest inputs of a row keep more bits. Weights in int4 have their scales among them
    (`pybeam.backends.int4.product`). With bfloat16 weights inputs are rounded, unless these are packed as
    int16.
    """
    if weight.element_size() == 1:
        rows = quantise_rows(x, keeps_large=weight.dtype == torch.int8)
        y = _product(*rows, weight, scale, out.shape[1])  # [n, out]
        y = y if bias is None else y + bias
    else:
        own = unpack(weight, torch.arange(out.shape[1], device=weight.device), x.shape[1])
        if weight.dtype == torch.bfloat16:
            x = x.bfloat16()  # to nearest, ties to even
        y = F.linear(x.float(), own.float(), bias)  # [n, out]
    if adds:
        out.add_(y)
    else:
        out.copy_(FUNCTIONS[Activation(activation)](y))


def _product(
    q: Tensor, row_scale: Tensor, weight: Tensor, scale: Tensor | None, num_columns: int
) -> Tensor:
    """Compute x W^T [n, out] of rows ``x ~ q * row_scale`` and packed integers."""
    if scale is None:
        from pybeam.backends import int4

        return int4.product(q, row_scale, weight, num_columns)
    own = unpack(weight, torch.arange(num_columns), q.shape[1])
    # float64 holds every sum of products
    return (q.double() @ own.double().t()).float() * (row_scale[:, None] * scale)


def quantise_rows(x: Tensor, keeps_large: bool = False) -> tuple[Tensor, Tensor]:
    """Quantise x [n, in] to integers q of -127 to 127 in float32 and a scale [n], ``x ~ q * scale``.

    ``scale = m / 127`` and ``q = round(x * (127 / m))``, ties to even, where m is max |x|. With `keeps_large`
    m is the fifth largest |x|, or a 128th of the largest if that is more, so that up to four q are larger
    than 127, and at most 128 * 127. A row whose numbers are all nearly 0 becomes 0. A row with NaN or
    infinities has the scale NaN.
    """
    magnitude = x.abs().amax(1) if x.shape[1] else x.new_zeros(len(x))  # [n]
    if keeps_large:
        order = F.pad(x.abs(), (0, NUM_LARGE)).topk(NUM_LARGE + 1).values
        least = magnitude / (LARGEST + 1)
        magnitude = order[:, -1].maximum(least).where(magnitude.isfinite(), math.nan)
    is_zero = (magnitude < LEAST_MAGNITUDE) | ~magnitude.isfinite()
    magnitude = magnitude.where(magnitude.isfinite(), math.nan)
    # torch turns a number over a tensor into a product, which is rounded twice
    q = x * torch.full_like(magnitude, LARGEST).div_(magnitude)[:, None]
    q = q.round().masked_fill(is_zero[:, None], 0.0)  # [n, in]
    return q, (magnitude / LARGEST).masked_fill(magnitude < LEAST_MAGNITUDE, 0.0)


def embed(
    token: Tensor,
    position: Tensor,
    table: Tensor,
    scale: Tensor | None,
    vocab_size: int,
    position_table: Tensor,
    embedding_scale: float,
) -> Tensor:
    """Compute ``position_table[position] + embedding_scale * W[token]`` [n, d].

    `table` is W [V, d], or W packed; `scale` [V] belongs to int8. Without positions in their table, which is
    [0, d] then, nothing is added.
    """
    if table.ndim == 2:
        rows = table.index_select(0, token)  # [n, d]
    else:
        rows = unpack(table, token, position_table.shape[1])
    if scale is not None:
        rows = rows * scale[token][:, None]
    if not len(position_table):
        return rows.to(position_table.dtype) * embedding_scale
    return F.embedding(position, position_table).add_(rows, alpha=embedding_scale)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Compute ``(x - mean) / sqrt(variance + epsilon) * weight + bias`` for every row of x [n, d]."""
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Compute ``x * rsqrt(mean(x^2) + epsilon) * weight`` over the last dimension of x [..., d].

    The arithmetic is float32 at least, whatever the dtype of x.
    """
    wide = x if x.dtype == torch.float64 else x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (y * weight).to(x.dtype)


def add_norm(
    x: Tensor,
    product: Tensor,
    bias: Tensor | None,
    weight: Tensor,
    shift: Tensor | None,
    epsilon: float,
) -> Tensor:
    """Add a product [n, d] and a bias [d] to x [n, d] in place. Returns the norm of that sum, [n, d].

    It is `layer_norm` with this weight and shift [d], or `rms_norm` if there is no shift.
    """
    x.add_(product if bias is None else product + bias)
    if shift is None:
        return rms_norm(x, weight, epsilon)
    return layer_norm(x, weight, shift, epsilon)


def turn_heads(*given: Any) -> tuple[Tensor, Tensor]:
    # a decoder that has an encoder turns nothing
    from pybeam.backends import torch_heads

    return torch_heads.turn_heads(rms_norm, torch_heads.rotary, *given)


def gated(x: Tensor, activation: int) -> Tensor:
    """Compute ``act(g) * u`` [n, F], where ``x = [g, u]`` [n, 2 F]."""
    g, u = x.chunk(2, 1)
    return FUNCTIONS[Activation(activation)](g) * u


def soft_cap(x: Tensor, cap: float) -> None:
    """Replace x by ``cap * tanh(x / cap)``."""
    x.div_(cap).tanh_().mul_(cap)


# the parameters are the tensors of attention, which kernels take one by one
def prompt_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offset: Tensor,
    slot: Tensor,
    cell: Tensor,
    num_cells: Tensor,
    position: Tensor,
    scale: float,
    window: int,
    soft_cap: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute causal attention [R, H, D] of rows of prompts, a block of rows at a time.

    ``softmax(scale * query key^T) value``, where a row at position p sees the cells at places 0 to p of its
    source's line: the last `window` of them, if that is not 0. With a `soft_cap` other than 0, scores become
    ``cap * tanh(score / cap)``. Rows behind the last offset are padding: zeros. A row's result depends on
    nothing but its query and the cells that it sees.

    Args:
        query: [R, H, D].
        key, value: [cells, G, D], where G divides H.
        offset: [A + 1] int32, rows of the a-th source are offset[a] .. offset[a + 1].
        slot: [A] int32, the line of each source.
        cell: [S, U] int32, the cells of each line in the order of their positions.
        num_cells: [S] int32, how many of them are known.
        position: [R] int32, less than num_cells.
        scale: of the products.
        window: 0: all.
        soft_cap: 0: none.
        bias: [H, L] float32, added to scores by the distance from a row back to a cell; distances beyond it
            have its last column.
    """
    dtype = query.dtype if query.dtype == torch.float64 else torch.float32
    group, out = query.shape[1] // key.shape[1], torch.zeros_like(query)
    bounds = offset.tolist()
    for line, first, last in zip(slot.tolist(), bounds, bounds[1:], strict=False):
        for row in range(first, last, PROMPT_ROWS):
            rows = slice(row, min(row + PROMPT_ROWS, last))
            at = position[rows].long()  # [r]
            seen = cell[line, : int(at.max()) + 1].long()  # [n]
            keys, values = (t[seen].to(dtype).repeat_interleave(group, 1) for t in (key, value))
            score = torch.einsum("rhd,nhd->hrn", query[rows].to(dtype), keys) * scale
            if soft_cap:
                score = soft_cap * (score / soft_cap).tanh()
            back = at[:, None] - torch.arange(len(seen), device=at.device)  # [r, n]
            if bias is not None:
                score = score + bias[:, back.clamp(0, bias.shape[1] - 1)]
            is_hidden = (back < 0) | (back >= window) if window else back < 0
            weight = score.masked_fill(is_hidden, -INF).softmax(-1)
            out[rows] = torch.einsum("hrn,nhd->rhd", weight, values).to(query.dtype)
    return out


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
