"""Layers whose few rows a backend multiplies in one kernel, with the norm before and what stands behind.

On a GPU a step of few sources takes as long as its kernels are many, and as their weights take from memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from pybeam.backends import Backend
from pybeam.backends.torch_layers import Activation
from pybeam.models.linear import GatedLinear, PlainLinear
from pybeam.models.transformer.layers import Layer, Stack
from pybeam.models.transformer.norms import Norm, Norms


class Unread(NamedTuple):
    """Rows x [n, d] in place of their norm, which the layer that reads them computes on the way."""

    x: Tensor
    norm: tuple[Tensor, Tensor | None, float]  # `Norm.parts`


class FewRowsLinear(PlainLinear):
    """The same layer, where a backend multiplies the rows that its products are for, and torch others.

    Args:
        linear: the layer.
        products: `Backend.few_rows`.
    """

    def __init__(self, linear: PlainLinear, products: Any) -> None:
        bias = None if linear.bias is None else linear.bias.contiguous()
        super().__init__(linear.weight, bias, linear.activation)
        self.num_columns = linear.num_columns
        self._linear, self._products = linear, products
        self._matrix = getattr(linear, "narrow", linear.weight)

    def with_backend(self, backend: Backend) -> PlainLinear:
        return self._linear.with_backend(backend)

    def takes(self, x: Tensor, has_norm: bool = False) -> bool:
        """Whether one kernel multiplies these rows [n, in], and computes their norm."""
        return self._products.takes_product(x, self._matrix, has_norm)

    def __call__(self, x: Any, memory: Tensor | None = None) -> Tensor:
        x, norm = x if isinstance(x, Unread) else (x, None)
        if norm is not None or (memory is None and self.takes(x)):
            return self._in_one(x, self.bias, self._activation_id, None, norm)
        return self._linear(x, memory)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        if self.takes(x) and residual.is_contiguous():
            return self._in_one(x, self.bias, Activation.NONE, residual, None)
        return self._linear.add(residual, x)

    def without_bias(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.takes(x):
            return self._in_one(x, None, Activation.NONE, None, None), self.bias
        return self._linear.without_bias(x)

    def _in_one(self, x: Tensor, *given: Any) -> Tensor:
        return self._products.product(x, self._matrix, *given)


class UnreadNorm(Norm):
    """The same norm, which the layer that reads it computes if it takes the rows."""

    def __init__(self, norm: Norm, reader: FewRowsLinear) -> None:
        super().__init__(*norm.parts)
        self._backend, self.reader = norm._backend, reader

    def __call__(self, x: Tensor) -> Any:
        is_left = self.reader.takes(x, has_norm=True)
        return Unread(x, self.parts) if is_left else super().__call__(x)


def with_products(stack: Stack, products: Any) -> Stack:
    """Return a stack whose layers have these products. Those of weights in 8 or 4 bits have them before."""

    def own(linear: Any) -> Any:
        if isinstance(linear, GatedLinear):
            return GatedLinear(own(linear.linear), linear.activation, linear.kernels)
        return FewRowsLinear(linear, products) if type(linear) is PlainLinear else linear

    def before(norms: Norms, reader: Any) -> Norms:
        reader = reader.linear if isinstance(reader, GatedLinear) else reader
        if norms.before is None or not isinstance(reader, FewRowsLinear):
            return norms
        return replace(norms, before=UnreadNorm(norms.before, reader))

    def with_own(layer: Layer) -> Layer:
        qkv, inner, cross = own(layer.qkv), own(layer.inner), layer.cross
        if cross is not None:
            query, out = own(cross.query), own(cross.out)
            cross = replace(cross, norms=before(cross.norms, query), query=query, out=out)
        return replace(
            layer,
            self_norms=before(layer.self_norms, qkv),
            qkv=qkv,
            self_out=own(layer.self_out),
            cross=cross,
            inner_norms=before(layer.inner_norms, inner),
            inner=inner,
            inner_out=own(layer.inner_out),
        )

    return replace(stack, layers=[with_own(layer) for layer in stack.layers])
