"""Linear layers in int4."""

from __future__ import annotations

from torch import Tensor

from pybeam.backends.int4 import dequantised, pack, unpack
from pybeam.backends.packing import Quantised
from pybeam.models.linear import PackedLinear


class Int4Linear(PackedLinear):
    """`PackedLinear` with weights in int4, which have a scale for each group of 32 inputs.

    Inputs become int8, row by row. Sums of integers within a group are exact, and those over groups are
    float32, one group after another: ``y = (sum_g (p_g q_g^T) * s_g) * t + b``. So a row's result is the same
    in every batch, and the same for every instruction set, bit for bit.

    Args:
        weight: q [out, in] and scales [out, groups], as `quantise_groups` gives them.
        bias: [out]; None: there is none.
        activation: its name in config.json.
    """

    def __init__(
        self, weight: Quantised, bias: Tensor | None, activation: str | None = None
    ) -> None:
        super().__init__(weight, bias, activation)
        self._scale = None  # it is among the packed weights

    def _pack(self, weight: Tensor | Quantised, keeps_large: bool) -> Tensor:
        assert isinstance(weight, Quantised)
        return pack(weight)

    def rows(self, index: Tensor) -> Tensor:
        return dequantised(unpack(self._weight, index, self._depth))
