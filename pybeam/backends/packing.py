"""Pack weights for the linear kernel: in panels of columns, each panel in one piece."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# columns of a panel, `kPanel` in C++
PANEL = 64


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
    """Return W[index] [n, in] in its storage dtype, from the result of `pack`, rows [n] of W, and in."""
    panel, column = index // PANEL, index % PANEL
    if packed.dtype != torch.bfloat16:
        return packed[panel, :, column]
    # a pair is moved as one number
    pairs = packed.view(torch.int32)[panel, :, column, 0]  # [n, in / 2]
    return pairs.view(torch.bfloat16)[:, :depth]
