"""Linear layers whose weights have 8 bits, as floating-point numbers, for GPUs that multiply them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.defaults import rounded_rows
from pybeam.backends.narrow import EIGHT, EIGHTS, LANES, turned
from pybeam.backends.packing import Quantised
from pybeam.models.linear import Linear, PackedLinear, PlainLinear
from pybeam.models.narrow import of_few_rows

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0  # number of this dtype
STEP = 16  # both sizes of a matrix must be multiples of it
TURNED = LANES * EIGHTS * EIGHT  # and one of them of this, for a product of few rows
CAPABILITY = 8, 9  # of the first GPUs that multiply such numbers


class Float8Linear(PlainLinear):
    """y = act(x W^T + b), with W and x rounded to E4M3 (Micikevicius et al. 2022, arXiv:2209.05433).

    Once, for every output i: ``s_i = max_j |W_ij| / 448`` and ``q_ij = e4m3(W_ij / s_i)``. In every step, for
    every row x: ``t = max_j |x_j| / 448``, ``p_j = e4m3(x_j / t)``, and
    ``y_i = t s_i sum_j p_j q_ij + b_i``. Rounding is to nearest, ties to even. There is no calibration:
    scales of inputs follow the inputs. A row of zeros gives b, and a row with NaN or infinities gives NaN.

    `torch.nn.functional.scaled_mm` multiplies, and products are bfloat16. Few rows are not rounded where a
    backend has a product for them: it reads the same weights in one kernel, and `NarrowLinear` says how. A
    CPU has `EmulatedFloat8`.

    Args:
        weight: [out, in]; `in` is a multiple of 16.
        bias: [out]; None: there is none.
        activation: its name in config.json.

    Attributes:
        weight: q, as E4M3, with rows of zeros behind it, up to a multiple of 16.
        scale: s, float32, of these rows.
        narrow: q and s as products of few rows read them; None: `in` is no multiple of 64. `weight` is in
            that order, too, in which inputs are put for it.
    """

    activates_in_product = False

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> None:
        assert can_round(weight), weight.shape
        num_columns = weight.shape[0]
        q, scale = rounded_rows(weight)
        missing = -num_columns % STEP
        q = F.pad(q.view(torch.uint8), (0, 0, 0, missing)).view(DTYPE)
        self.scale = F.pad(scale, (0, missing), value=1.0)
        self.narrow: Quantised | None = None
        if weight.shape[1] % TURNED == 0:
            q = turned(q, EIGHTS)
            self.narrow = Quantised(q[:num_columns], scale)
        super().__init__(q, bias, activation)
        self.num_columns = num_columns
        self._rounded: Callable[[Tensor], tuple[Tensor, Tensor]] = rounded_rows

    def with_backend(self, backend: Backend) -> PlainLinear:
        """Return this layer, which rounds inputs in one kernel if the backend has it."""
        layer = copy.copy(self)
        layer._rounded = backend.rounded_rows
        return layer if self.narrow is None else of_few_rows(layer, backend)

    def without_bias(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._product(x), None

    def _product(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        p, scale = self._rounded(x)
        if self.narrow is not None:
            p = turned(p, EIGHTS)
        y = scaled_product(p, scale, self.weight, self.scale)[:, : self.num_columns]
        y = y.to(x.dtype) if self.bias is None else y.to(x.dtype) + self.bias
        return y if memory is None else memory[: x.shape[0]].copy_(y)


class EmulatedFloat8(PackedLinear):
    """`Float8Linear` on a CPU, in float32: it shows the quality of results, and none of the speed.

    ``p_j t`` and ``q_ij s_i`` are multiplied as `PackedLinear` multiplies, so that a row's result does not
    depend on the other rows.
    """

    shares_weights = False

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> None:
        super().__init__(as_rounded(weight), bias, activation)

    def _read(self, x: Tensor) -> Tensor:
        return as_rounded(x)


def linear(weight: Tensor, bias: Tensor | None, activation: str | None = None) -> Linear:
    """Make the layer for the device of these weights."""
    layer = EmulatedFloat8 if weight.is_cpu else Float8Linear
    return layer(weight, bias, activation)


def as_rounded(x: Tensor) -> Tensor:
    """Return the numbers that `rounded_rows` stands for, float32."""
    p, scale = rounded_rows(x)
    return p.float() * scale[:, None]


def scaled_product(p: Tensor, p_scale: Tensor, q: Tensor, q_scale: Tensor) -> Tensor:
    """``(p q^T) * p_scale[:, None] * q_scale`` [n, out] bfloat16 of p [n, in] and q [out, in], on a GPU."""
    by_row = F.ScalingType.RowWise
    return F.scaled_mm(
        p,
        q.t(),
        p_scale[:, None].contiguous(),
        by_row,
        q_scale[None].contiguous(),
        by_row,
        output_dtype=torch.bfloat16,
    )


def can_round(weight: Tensor) -> bool:
    """Whether `Float8Linear` takes a matrix of this shape."""
    return weight.shape[1] % STEP == 0


def device_problem(device: torch.device) -> str | None:
    """Return why a device cannot multiply such numbers, or None. A CPU computes the formula."""
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_capability(device)
    if found >= CAPABILITY:
        return None
    return (
        f"needs a GPU of compute capability {CAPABILITY[0]}.{CAPABILITY[1]} or more, but {device} has "
        f"{found[0]}.{found[1]}; use 'bfloat16' or 'float16'"
    )
