"""Pack weights for the linear kernel: in panels of columns, each panel in one piece."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# columns of a panel, `kPanel` in C++
PANEL = 64
# integers are -LARGEST to LARGEST, so that the largest weight or input of a row is exact
LARGEST = 127
# packed integers are stored as weight + OFFSET, because CPUs multiply unsigned by signed bytes
OFFSET = 128


class Quantised(NamedTuple):
    """Weights W [out, in] as integers: ``W ~ q * scale``, a scale per row."""

    q: Tensor  # [out, in] int8, -127 to 127
    scale: Tensor  # [out] float32


def quantise(weight: Tensor) -> Quantised:
    """Quantise W [out, in] symmetrically, row by row.

    ``scale = max |w| / 127`` and ``q = round(w / scale)``, ties to even, A row of zeros has the scale 0.
    """
    weight = weight.float()
    scale = weight.abs().amax(1) / LARGEST if weight.shape[1] else weight.new_zeros(len(weight))
    q = (weight / scale.masked_fill(scale == 0, 1.0)[:, None]).round_()
    return Quantised(q.clamp_(-LARGEST, LARGEST).to(torch.int8), scale)


def pack_int8(q: Tensor) -> Tensor:
    """Pack q [out, in] int8 as [out / 64, in / 4, 64, 4] uint8, each as q + 128; zeros of q fill it up."""
    num_columns, depth = q.shape
    padded = F.pad(q, (0, -depth % 4, 0, -num_columns % PANEL))
    stored = padded.view(torch.uint8) ^ OFFSET
    return stored.view(-1, PANEL, (depth + 3) // 4, 4).transpose(1, 2).contiguous()


def pack(weight: Tensor) -> Tensor:
    """Pack W [out, in] as [out / 64, in, 64], or as [out / 64, in / 2, 64, 2] in bfloat16.

    Zeros fill the last panel and the last pair. Weights that float16 holds exactly become float16.
    """
    num_columns, depth = weight.shape
    if weight.dtype == torch.bfloat16:
        padded = F.pad(weight, (0, depth % 2, 0, -num_columns % PANEL))
        return padded.view(-1, PANEL, (depth + 1) // 2, 2).transpose(1, 2).contiguous()
    halves = weight.half()
    if torch.equal(halves.to(weight.dtype), weight):
        weight = halves
    padded = F.pad(weight, (0, 0, 0, -num_columns % PANEL))
    return padded.view(-1, PANEL, depth).transpose(1, 2).contiguous()


def unpack(packed: Tensor, index: Tensor, depth: int) -> Tensor:
    """Return W[index] [n, in] in its storage dtype, from the result of `pack`, rows [n] of W, and in.

    From the result of `pack_int8` it is q[index] in int8.
    """
    panel, column = index // PANEL, index % PANEL
    if packed.dtype == torch.uint8:
        # a group is moved as one number
        groups = packed.view(torch.int32)[panel, :, column, 0]  # [n, in / 4]
        return (groups.view(torch.uint8)[:, :depth] ^ OFFSET).view(torch.int8)
    if packed.dtype != torch.bfloat16:
        return packed[panel, :, column]
    # a pair is moved as one number
    pairs = packed.view(torch.int32)[panel, :, column, 0]  # [n, in / 2]
    return pairs.view(torch.bfloat16)[:, :depth]
