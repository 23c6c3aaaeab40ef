"""Common to built-in transformers: parts that a backend computes, and the dtype of keys and values."""

from __future__ import annotations

import copy
from typing import Self

import torch

from pybeam.arguments import ArgumentError
from pybeam.backends import Backend
from pybeam.backends.packing import INTEGERS
from pybeam.models.base import InProcess


class BuiltIn(InProcess):
    """A transformer whose decoder keeps keys and values of tokens and of encoder states."""

    dtype: torch.dtype  # of activations and logits
    weight_dtype: torch.dtype  # of matrices and token tables
    device: torch.device
    _cache_dtype: torch.dtype | None = None  # None: as it suits the weights

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of keys and values: that of activations, or bfloat16, where weights round more."""
        rounds = self._may_round and self.weight_dtype in (*INTEGERS, torch.bfloat16)
        return self._cache_dtype or (torch.bfloat16 if rounds else self.dtype)

    def with_cache(self, dtype: torch.dtype) -> Self:
        """Return a model with the same weights that keeps keys and values in this dtype.

        Raises:
            ValueError: it is neither `self.dtype` nor, for float32 on a CPU, bfloat16.
        """
        if dtype != self.dtype and not (self._may_round and dtype == torch.bfloat16):
            problem = (
                f"must be 'auto' for a model that computes in {self.dtype} on {self.device}, but is {dtype}; "
                "bfloat16 is for models that compute in float32 on a CPU"
            )
            raise ArgumentError("cache_dtype", problem)
        model = copy.copy(self)
        model._cache_dtype = dtype
        return model

    def with_backend(self, backend: Backend) -> Self:
        """Return a model with the same weights, computed by this backend module."""
        model = copy.copy(self)
        for name, part in vars(self).items():
            if hasattr(part, "with_backend"):
                setattr(model, name, part.with_backend(backend))
        return model

    @property
    def _may_round(self) -> bool:
        return self.dtype == torch.float32 and self.device.type == "cpu"

    @property
    def _dtypes(self) -> str:
        parts = {"": self.dtype, " weights": self.weight_dtype, " cache": self.cache_dtype}.items()
        return ", ".join(f"{one}{name}" for name, one in parts if not name or one != self.dtype)
