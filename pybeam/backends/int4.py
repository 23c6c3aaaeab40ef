"""Weights in int4: integers of four bits, with a scale for each few neighbours of a row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.memory import weight_array
from pybeam.backends.packing import PANEL, TURNED, Quantised

# neighbours of a row that share a scale, `kGroup` in C++
GROUP = 32
# integers are -OFFSET to OFFSET - 1, and stored as weight + OFFSET, two in a byte
OFFSET = 8
# of the scales of a group of each column of a panel
SCALE_BYTES = 2 * PANEL


def num_groups(depth: int) -> int:
    """Return into how many groups a row of so many weights falls. The last one may be smaller."""
    return -(-depth // GROUP)


def quantise_groups(weight: Tensor) -> Quantised:
    """Quantise W [out, in] symmetrically, group by group. Scales are [out, groups], bfloat16.

    ``scale = bfloat16(m / -8)``, where m is the weight of the largest magnitude, with its sign, and
    ``q = round(w / scale)``, ties to even, and at most 7: so all 16 integers are used. It is the rule of
    Q4_0 in llama.cpp. ``bfloat16(m / 7)`` takes its place where ``sum (w - q * scale)^2`` is smaller with it.
    Either way m stays what it is, but for rounding of the scale. A group of zeros has the scale 0.
    """
    num, depth = weight.shape
    groups = F.pad(weight.float(), (0, -depth % GROUP)).reshape(-1, GROUP)
    most = groups.gather(1, groups.abs().argmax(1, keepdim=True))  # [num * groups, 1]

    def rounded(integer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, scales and errors where the largest weight becomes this integer."""
        scale = (most / integer).bfloat16()
        q = (groups / scale.masked_fill(scale == 0, 1.0)).round_().clamp_(-OFFSET, OFFSET - 1)
        return q, scale, (groups - q * scale).square_().sum(1, keepdim=True)

    (q, scale, error), (other_q, other_scale, other_error) = rounded(-OFFSET), rounded(OFFSET - 1)
    is_better = other_error < error
    q, scale = torch.where(is_better, other_q, q), torch.where(is_better, other_scale, scale)
    return Quantised(q.to(torch.int8).view(num, -1)[:, :depth], scale.view(num, -1))


def dequantised(weight: Quantised) -> Tensor:
    """Return W [out, in] in float32."""
    q, scale = weight
    return q * scale.float().repeat_interleave(GROUP, 1)[:, : q.shape[1]]


def fold(q: Tensor) -> Tensor:
    """Fold q [n, in] into bytes [n, groups * 16]: zeros fill the last group.

    The first four of eight neighbours are in the low halves of four bytes, the others in the high ones.
    """
    filled = F.pad(q, (0, -q.shape[1] % GROUP)) + OFFSET
    low, high = filled.view(torch.uint8).view(len(q), -1, 2, 4).unbind(2)  # [n, in / 8, 4]
    return (low | high << 4).flatten(1)


def unfold(folded: Tensor, depth: int) -> Tensor:
    """Return q [n, in] of `fold`."""
    pairs = folded.view(len(folded), -1, 1, 4)
    q = torch.cat((pairs & 15, pairs >> 4), 2).flatten(1)[:, :depth]
    return q.to(torch.int8) - OFFSET


def pack(weight: Quantised) -> Tensor:
    """Pack W [out, in] as [out / 64, groups, 64 * 18]: scales, and what `fold` gives of a panel's columns.

    Each block of a panel and a group has 64 scales and then [4, 64, 4] bytes, which a product reads from
    first to last. Zeros fill the last panel. Some panels are packed at a time, for little memory beside.
    """
    q, scale = weight
    groups = scale.shape[1]
    shape = -(-len(q) // PANEL), groups, PANEL * (GROUP // 2) + SCALE_BYTES
    packed = weight_array(shape, torch.uint8)
    num = max(1, TURNED // max(1, PANEL * q.shape[1]))  # panels at a time
    parts = packed.split(num), q.split(num * PANEL), scale.split(num * PANEL)
    for panels, own_q, own_scale in zip(*parts, strict=True):
        scales, pairs = _parts(panels)
        missing = 0, 0, 0, -len(own_q) % PANEL
        scales.copy_(F.pad(own_scale, missing).view(-1, PANEL, groups).transpose(1, 2))
        folded = F.pad(fold(own_q), missing).view(torch.int32)
        pairs.copy_(folded.view(-1, PANEL, groups, GROUP // 8).permute(0, 2, 3, 1))
    return packed


def _parts(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales [panels, groups, 64], and the bytes [panels, groups, 4, 64], four as one number."""
    pairs = packed[..., SCALE_BYTES:].view(torch.int32).unflatten(2, (-1, PANEL))
    return packed[..., :SCALE_BYTES].view(torch.bfloat16), pairs


def unpack(packed: Tensor, index: Tensor, depth: int) -> Quantised:
    """Return the rows W[index], from the result of `pack` and in."""
    scales, pairs = _parts(packed)
    panel, column = index // PANEL, index % PANEL
    folded = (
        pairs[panel, :, :, column].flatten(1).contiguous().view(torch.uint8)
    )  # [n, groups * 16]
    return Quantised(unfold(folded, depth), scales[panel, :, column])


def product(q: Tensor, scale: Tensor, packed: Tensor, num_columns: int) -> Tensor:
    """Compute x W^T [n, out] of rows ``x ~ q * scale``, q [n, in], and packed weights.

    It is ``(sum_g (q_g q_Wg^T) * s_g) * scale``: sums of integers are exact, those over groups are float32,
    one group after another.
    """
    own = unpack(packed, torch.arange(num_columns), q.shape[1])
    y = torch.zeros(len(q), num_columns)
    groups = (part.double().split(GROUP, 1) for part in (q, own.q))
    for x, weight, factor in zip(*groups, own.scale.float().t(), strict=True):
        y += (x @ weight.t()).float() * factor
    return y * scale[:, None]
