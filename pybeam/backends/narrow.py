"""Weights of 8 and 4 bits as a GPU keeps them, and reads them without moving a number.

Four lanes of a warp read a part of a row at once, 16 bytes each. A tensor core wants eight neighbours out of
each 32 in one lane, so the eights of a part are turned: lane after lane, and for each lane its eights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.int4 import GROUP, OFFSET
from pybeam.backends.packing import Quantised

# lanes that read a row together, and neighbours that one has
LANES, EIGHT = 4, 8
# eights of a lane: 16 bytes of 8 bits, and of 4
EIGHTS, EIGHTS_OF_INT4 = 2, 4
# pairs of an eight in the order of their halves of a word: its low bits, then its high ones
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def stored(weight: Quantised) -> Quantised:
    """Return a matrix [out, in] with scales as `product` reads them, on the same device.

    Args:
        weight: int8 or E4M3 [out, in] and scales [out] float32, or for int4 int8 [out, in] and scales
            [out, groups] bfloat16, as `quantise_groups` gives them.

    Returns:
        In 8 bits the same numbers, turned, with zeros up to a multiple of 64, and the same scales. In 4 bits
        int32 [out, in / 8], eight numbers a word, with zeros up to a multiple of 16 words, and scales, with
        zeros up to a multiple of 4.
    """
    q, scale = weight
    if scale.ndim == 1:
        return Quantised(turned(q, EIGHTS), scale)
    nibbles = turned(q + OFFSET, EIGHTS_OF_INT4, OFFSET).view(torch.uint8)
    eights = nibbles.view(len(q), nibbles.shape[1] // EIGHT, EIGHT)[..., ORDER]
    low, high = eights.unflatten(2, (-1, 2)).unbind(3)  # [out, in / 8, 4]
    words = (low | high << 4).contiguous().view(torch.int32).squeeze(2)
    return Quantised(words, F.pad(scale, (0, -scale.shape[1] % EIGHTS_OF_INT4)).contiguous())


def turned(q: Tensor, eights: int, filling: int = 0) -> Tensor:
    """Turn numbers of one byte [out, in] part by part, lanes first; `filling` fills the last part."""
    part = LANES * EIGHT * eights
    filled = F.pad(q.view(torch.uint8), (0, -q.shape[1] % part), value=filling)
    # an eight is moved as one number
    parts = filled.view(torch.int64).view(len(q), filled.shape[1] // part, eights, LANES)
    return parts.transpose(2, 3).flatten(1).view(q.dtype)


def dequantised(weight: Quantised, depth: int, dtype: torch.dtype) -> Tensor:
    """Return W [out, in] in a dtype from the result of `stored`."""
    q, scale = weight
    if scale.ndim == 1:
        wide = _in_order(q.float(), EIGHTS) * scale[:, None]
        return wide[:, :depth].to(dtype)
    shift = torch.arange(0, 32, 4, dtype=torch.int32, device=q.device)
    nibbles = q[..., None] >> shift & 15  # [out, words, 8]
    # pair i is in the halves i and i + 4
    numbers = nibbles.unflatten(2, (2, 4)).transpose(2, 3).flatten(1) - OFFSET
    groups = _in_order(numbers, EIGHTS_OF_INT4).view(*scale.shape, GROUP)
    return (groups * scale.float()[..., None]).to(dtype).flatten(1)[:, :depth]


def _in_order(q: Tensor, eights: int) -> Tensor:
    """Return numbers [out, in] in the order that they had before `turned`."""
    part = LANES * EIGHT * eights
    parts = q.view(len(q), q.shape[1] // part, LANES, eights, EIGHT)
    return parts.transpose(2, 3).flatten(1)
