"""The seam between two sublayers: ``x + linear(y)``, and the norm through which the next one reads it."""

from __future__ import annotations

from torch import Tensor

from pybeam.backends import Backend
from pybeam.models.linear import Linear, PackedLinear
from pybeam.models.norms import RMSNorm
from pybeam.models.transformer.layers import Norm


def add_and_norm(
    backend: Backend, linear: Linear, norm: Norm | RMSNorm, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``x + linear(y)`` [n, d] and its norm [n, d]. The memory of x may be used for the sum.

    Where products cannot add to what they find, residual and bias are added in the norm's own kernel.
    """
    if backend.adds_in_products or isinstance(linear, PackedLinear) or not x.numel():
        x = linear.add(x, y)
        return x, norm(x)
    product, bias = linear.without_bias(y)  # [n, d], [d]
    return x, backend.add_norm(x, product, bias, norm.weight, norm.bias, norm.epsilon)
