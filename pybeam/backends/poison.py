"""Poison: with `PYBEAM_POISON=1` in the environment, memory without meaning holds NaN and absurd numbers.

It is for tests, and nothing depends on it. A read of such memory is found by its effect: a score becomes NaN,
an id is out of range. Two kinds of memory are poisoned:

* New memory. torch itself fills tensors that nobody initialises. It does so where algorithms must be
  deterministic, so they must be. `Arena` fills its own memory. ``csrc/scratch.h`` fills the memory that
  kernels work in, and the tensors of C++ operators.
* Memory that is used again: cells and pages that nobody sees, lines of slots that are empty, places behind
  the last one that counts. Its owner calls `forget` or `forget_behind`. Both do nothing without the variable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from pybeam.backends.inference import inferring

IS_ON = os.environ.get("PYBEAM_POISON") == "1"


def poison_new_tensors() -> None:
    """Have torch fill what nobody initialises, if the variable is set."""
    if IS_ON:
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        # as use_deterministic_algorithms, which imports a compiler first
        torch.set_deterministic_debug_mode("error")


@cache
def absurd(dtype: torch.dtype) -> float:
    """The number that torch fills memory of this type with: NaN, or the largest one."""
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def forget(tensors: Iterable[Tensor], where: Tensor | None = None) -> None:
    """Poison these tensors [n, ...], or those lines `where` [n] is true: nobody may read what was there."""
    if IS_ON:
        _forget(tensors, where)


# a stream's memory is made in that mode
@inferring
def _forget(tensors: Iterable[Tensor], where: Tensor | None) -> None:
    for tensor in tensors:
        if where is None:
            tensor.fill_(absurd(tensor.dtype))
        else:
            lines = where.view(-1, *[1] * (tensor.ndim - 1))
            tensor.masked_fill_(lines, absurd(tensor.dtype))


def forget_behind(tensors: Iterable[Tensor], count: Tensor) -> None:
    """Poison what lies behind the first `count` [S] columns in each line of tensors [S, N, ...]."""
    if IS_ON:
        _forget_behind(tensors, count)


@inferring
def _forget_behind(tensors: Iterable[Tensor], count: Tensor) -> None:
    count = count[:, None]
    behind: dict[int, Tensor] = {}  # [S, N], by N
    for tensor in tensors:
        width = tensor.shape[1]
        if width not in behind:
            behind[width] = _columns(width, count.device) >= count
        where = behind[width]
        if tensor.ndim > 2:
            where = where.view(*where.shape, *[1] * (tensor.ndim - 2))
        tensor.masked_fill_(where, absurd(tensor.dtype))


@cache
def _columns(width: int, device: torch.device) -> Tensor:
    return torch.arange(width, device=device)
