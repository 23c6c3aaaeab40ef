"""Norms, the places around a sublayer where they stand, and the seam between two sublayers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from pybeam import backends
from pybeam.backends import Backend, torch_layers
from pybeam.models.linear import Linear, PackedLinear

if TYPE_CHECKING:
    from pybeam.models.transformer.experts import Experts


class Norm:
    """Layer normalisation with a bias, or without one the root-mean-square norm of rows or of their heads.

    ``(x - mean) / sqrt(variance + epsilon) * weight + bias``, or ``x * rsqrt(mean(x^2) + epsilon) * weight``.
    A backend computes it if it takes plain layers, or the linear layers are packed for one (`can_pack`).
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        epsilon: float = 1e-5,
        *,
        is_packed: bool = False,
    ) -> None:
        self.weight, self.bias, self.epsilon = weight, bias, epsilon  # [d] or [D]
        self._backend = backends.resolve("auto", weight.device) if is_packed else None
        self.reader: Any = None  # the layer that computes the norm itself where it takes the rows

    def with_backend(self, backend: Backend) -> Norm:
        """Return the same norm, computed by this backend module, or by torch if that takes no such layers."""
        norm = copy.copy(self)
        norm._backend = backend if self._backend is not None or backend.takes_plain else None
        return norm

    @property
    def parts(self) -> tuple[Tensor, Tensor | None, float]:
        """Weight, bias and epsilon."""
        return self.weight, self.bias, self.epsilon

    def __call__(self, x: Tensor) -> Tensor:
        kernels = torch_layers if self._backend is None else self._backend
        if self.bias is None:
            return kernels.rms_norm(x, self.weight, self.epsilon)
        return kernels.layer_norm(x, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class Part:
    """A dataclass of layers, norms and other parts that a backend computes, beside numbers and tensors."""

    def with_backend(self, backend: Backend) -> Self:
        """Return the same part, computed by this backend module."""
        own: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        changed = {
            name: part.with_backend(backend)
            for name, part in own.items()
            if hasattr(part, "with_backend")
        }
        return replace(self, **changed)


@dataclass(frozen=True, slots=True)
class Norms(Part):
    """The norms around a sublayer f: x becomes ``behind(x + added(f(before(x))))``. Each may be missing."""

    before: Norm | None = None
    added: Norm | None = None
    behind: Norm | None = None


def joined(
    backend: Backend,
    linear: Linear | Experts,
    norms: Norms,
    following: Norm | None,
    x: Tensor,
    y: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the states [n, d] behind a sublayer, and their norm [n, d] that the next sublayer reads.

    The memory of x may be used for either.

    Args:
        backend: the module that computes it.
        linear: the sublayer's last layer.
        norms: those of the sublayer.
        following: the norm before the next sublayer; None: there is none, and states are read as they are.
        x: [n, d], the states before the sublayer.
        y: what the last layer reads.
    """
    added, behind = norms.added, norms.behind
    norm = following if behind is None else behind
    if added is not None or norm is None:
        x = linear.add(x, y) if added is None else x.add_(added(linear(y)))
        y = x if norm is None else norm(x)
    else:
        x, y = add_and_norm(backend, linear, norm, x, y)
    if behind is None:
        return x, y
    return y, y if following is None else following(y)


def add_and_norm(
    backend: Backend, linear: Linear | Experts, norm: Norm, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``x + linear(y)`` [n, d] and its norm [n, d]. The memory of x may be used for the sum.

    Where products cannot add to what they find, residual and bias are added in the norm's own kernel.
    """
    is_left = norm.reader is not None and norm.reader.takes(x, has_norm=True)
    if is_left or backend.adds_in_products or isinstance(linear, PackedLinear) or not x.numel():
        x = linear.add(x, y)
        return x, norm(x)
    product, bias = linear.without_bias(y)  # [n, d], [d]
    return x, backend.add_norm(x, product, bias, *norm.parts)
