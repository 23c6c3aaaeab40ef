"""Operators that pybeam's extension has only if it was built with CUDA, and what they take."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pybeam.contracts import SelectOptions

DTYPES = (torch.bfloat16, torch.float16)
# bytes, of pools, products and vectors of logits
ALIGNMENT = 16


def operator(name: str) -> Any:
    """An operator that `has_operator`."""
    return getattr(torch.ops.pybeam, name)


@cache
def has_operator(name: str, variable: str) -> bool:
    """Whether the extension was built with CUDA; a warning says that a variable has no effect if not."""
    with suppress(ImportError):
        from pybeam.backends import native  # registers its operators

        assert native is not None
    if not hasattr(torch.ops.pybeam, name):
        message = f"{variable}=1 has no effect: pybeam's extension was built without CUDA kernels"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return False
    return True


def is_whole(part: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether there is such an array in 16 bits, whose numbers lie side by side and begin at 16 bytes."""
    if part is None or part.dtype != dtype or dtype not in DTYPES:
        return False
    return part.is_contiguous() and part.data_ptr() % ALIGNMENT == 0


def takes_choice(like: Tensor, options: SelectOptions) -> bool:
    """Whether such an operator selects by these rules: `select` in CUDA C++ does."""
    from pybeam.backends.gpu_select import takes_cuda

    return takes_cuda(like, options)


def selected(
    score: Tensor, offset: Tensor, width: Tensor, options: SelectOptions
) -> tuple[Any, ...]:
    """The arguments of `select`, as operators take them."""
    capacity, eos_ids, finishing, normalise, *rules = options
    facts = list(eos_ids), int(finishing), capacity, normalise
    return score, offset, width, *rules, *facts
