"""Normalisation by the root of the mean square."""

from __future__ import annotations

import copy

from torch import Tensor

from pybeam import backends
from pybeam.backends import Backend, torch_layers


class RMSNorm:
    """``x * rsqrt(mean(x^2) + epsilon) * weight`` of every row, or of every head of a row.

    Gemma's ``1 + weight`` is in the weight. A backend computes it if the linear layers are packed for one.
    """

    def __init__(self, weight: Tensor, epsilon: float, *, is_packed: bool = False) -> None:
        self.weight, self.epsilon = weight, epsilon  # [d] or [D]
        self.bias = None
        self._backend = backends.resolve("auto", weight.device) if is_packed else None

    def with_backend(self, backend: Backend) -> RMSNorm:
        """Return the same norm, computed by this backend module, or by torch if it is not packed."""
        norm = copy.copy(self)
        norm._backend = backend if self._backend is not None else None
        return norm

    def __call__(self, x: Tensor) -> Tensor:
        kernels = torch_layers if self._backend is None else self._backend
        return kernels.rms_norm(x, self.weight, self.epsilon)
