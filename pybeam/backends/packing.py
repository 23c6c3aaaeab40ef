"""Pack weights for the linear kernel: in panels of columns, each panel in one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends.memory import weight_array

Fill = Callable[[Tensor, Tensor], None]
# columns of a panel, `kPanel` in C++
PANEL = 64
# integers are -LARGEST to LARGEST, so that the largest weight or input of a row is exact
LARGEST = 127
# inputs of a row that may be as large as 128 * LARGEST, where packed weights say so; `kNumLarge` in C++
NUM_LARGE = 4
# how many weights are looked at and how many are turned at a time, of which threads have their share; several
# copies of these are made, and malloc keeps large ones
CHUNK, TURNED = 1 << 16, 1 << 18
# torch's annotations lack it
INT4: torch.dtype = torch.int4  # type: ignore[attr-defined]
# dtypes of weights that are integers
INTEGERS = torch.int8, INT4
# packed integers are stored as weight + OFFSET, because CPUs multiply unsigned by signed bytes
OFFSET = 128


class Quantised(NamedTuple):
    """Weights W [out, ...] as integers: ``W ~ q * scale``, a scale per row; in int4, per group of a row."""

    q: Tensor  # [out, ...] int8, -127 to 127
    scale: Tensor  # [out] float32, or [out, groups] bfloat16 (`pybeam.backends.int4`)

    def rows(self, index: Tensor) -> Tensor:
        """Return W[index] [n, in] in float32, of a matrix."""
        return self.q[index] * self.scale[index][:, None]


def quantise(weight: Tensor) -> Quantised:
    """Quantise W [out, ...] symmetrically, row by row.

    ``scale = max |w| / 127`` and ``q = round(w / scale)``, ties to even. A row of zeros has the scale 0.
    """
    flat = weight.float().flatten(1)
    scale = flat.abs().amax(1) / LARGEST if flat.shape[1] else flat.new_zeros(len(flat))
    q = (flat / scale.masked_fill(scale == 0, 1.0)[:, None]).round_()
    q = q.clamp_(-LARGEST, LARGEST).to(torch.int8)
    return Quantised(q.view(weight.shape), scale)


def fill_panels(panels: Tensor, rows: Tensor) -> None:
    """Fill panels [p, d, 64] with rows [64 p, d]: ``panels[i, j, k] = rows[64 i + k, j]``."""
    panels.copy_(rows.view(len(panels), PANEL, rows.shape[1]).transpose(1, 2))


def pack(weight: Tensor | Quantised, fill: Fill = fill_panels, keeps_large: bool = False) -> Tensor:
    """Pack W [out, in] as [out / 64, in, 64], or as [out / 64, in / 2, 64, 2] in bfloat16.

    Integers q are packed as [out / 64, in / 4, 64, 4] uint8, each as q + 128; zeros of q fill them up. With
    `keeps_large` the same bytes are returned as int8, which says that the largest inputs keep more bits.
    Zeros fill the last panel and the last pair. Weights that float16 holds exactly become float16. Those that
    bfloat16 holds exactly, as models are often published, are packed as bfloat16 and returned as int16, which
    says that inputs are not rounded. They may be given so, too. `fill` is a backend's `fill_panels`.
    """
    if isinstance(weight, Quantised):
        packed = _panels(weight.q, torch.uint8, 4, fill)
        return packed.view(torch.int8) if keeps_large else packed
    if weight.dtype == torch.bfloat16:
        return _panels(weight, torch.bfloat16, 2, fill)
    if weight.dtype == torch.int16:
        weight = weight.view(torch.bfloat16)
    if _holds(weight, torch.float16):
        return _panels(weight, torch.float16, 1, fill).squeeze(3)
    if weight.shape[1] % 2 == 0 and _holds(weight, torch.bfloat16):
        return _panels(weight, torch.bfloat16, 2, fill).view(torch.int16)
    return _panels(weight, torch.float32, 1, fill).squeeze(3)


def _holds(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether this dtype holds the weights exactly."""
    if weight.dtype == dtype:
        return True
    parts = weight.split(max(1, CHUNK // max(1, weight.shape[1])))
    return all(torch.equal(part.to(dtype).to(part.dtype), part) for part in parts)


def _panels(weight: Tensor, dtype: torch.dtype, group: int, fill: Fill) -> Tensor:
    """Pack W [out, in] as [out / 64, in / group, 64, group], some panels at a time."""
    num_columns, depth = weight.shape
    packed = weight_array((-(-num_columns // PANEL), -(-depth // group), PANEL, group), dtype)
    # a group is moved as one number
    numbers = (packed if group == 1 else packed.view(torch.int32)).squeeze(3)
    num = max(1, TURNED // max(1, PANEL * depth))
    for panels, part in zip(numbers.split(num), weight.split(num * PANEL), strict=True):
        if depth % group or len(part) % PANEL:
            part = F.pad(part, (0, -depth % group, 0, -len(part) % PANEL))
        part = part.view(torch.uint8) ^ OFFSET if dtype == torch.uint8 else part.to(dtype)
        fill(panels, part.contiguous().view(numbers.dtype))
    return packed


def unpack(packed: Tensor, index: Tensor, depth: int) -> Tensor:
    """Return W[index] [n, in] in its storage dtype, from the result of `pack`, rows [n] of W, and in.

    From packed integers it is q[index] in int8.
    """
    panel, column = index // PANEL, index % PANEL
    if packed.ndim == 3:
        return packed[panel, :, column]
    # a group is moved as one number
    groups = packed.view(torch.int32)[panel, :, column, 0]  # [n, in / group]
    if packed.element_size() == 1:
        return (groups.view(torch.uint8)[:, :depth] ^ OFFSET).view(torch.int8)
    return groups.view(torch.bfloat16)[:, :depth]
