"""Memory on a CPU for arrays that are read again and again."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from pybeam.backends import poison
from pybeam.platforms.decoding import huge_pages

# of memory that processors address as one; smaller arrays stay in a cache
HUGE_PAGE = 1 << 21
# pages that are mapped together for weights; those that nobody touches cost nothing
ARENA = 32 * HUGE_PAGE
# smaller weights are a few pages of the usual size, and do not lie beside others
LEAST = 1 << 16
# of a cache line, where arrays begin
LINE = 64


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Within this, tensors are made on the CPU unless a device is named, as it is without any settings.

    A caller may have another default device (`torch.set_default_device`), even "meta".
    """
    if torch.get_default_device().type == "cpu":
        yield
        return
    with torch.device("cpu"):
        yield


class Arena:
    """Arrays in huge pages, one behind the other.

    Their memory is given back when the last of them is gone.

    Args:
        least: how many bytes are mapped at once, at least.
    """

    _pages: mmap.mmap

    def __init__(self, least: int = 0) -> None:
        self._least = least
        self._next = self._end = 0

    def array(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory for an array that is not empty; elsewhere if the system has no huge pages."""
        num = math.prod(shape)
        size = -(-num * dtype.itemsize // LINE) * LINE
        if self._next + size > self._end and not self._map(max(size, self._least)):
            return torch.empty(shape, dtype=dtype)
        array = torch.frombuffer(self._pages, dtype=dtype, count=num, offset=self._next)
        self._next += size
        poison.forget([array])
        return array.view(shape)

    def _map(self, size: int) -> bool:
        """Go on in new memory of so many bytes. Returns whether there is any in huge pages."""
        found = huge_pages(size, HUGE_PAGE)
        if found is not None:
            self._pages, self._next = found
            self._end = self._next + size
        return found is not None


_together: ContextVar[Arena | None] = ContextVar("_together", default=None)


@contextlib.contextmanager
def weights_together() -> Iterator[None]:
    """Within this, arrays of `weight_array` lie in one arena, which is nobody else's.

    So the small matrices of a model lie in huge pages, too, and none of its memory outlives it.
    """
    token = _together.set(Arena(ARENA))
    try:
        yield
    finally:
        _together.reset(token)


def weight_array(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return memory for weights that stay as long as their model, beside others of `weights_together`."""
    arena = _together.get()
    if arena is None or math.prod(shape) * dtype.itemsize < LEAST:
        return large_array(shape, dtype)
    return arena.array(shape, dtype)


def large_array(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return memory in huge pages where it takes many pages and the system has such ones.

    A step reads all weights of a large model and all keys and values of its sources, and waits for
    nothing else.
    """
    if math.prod(shape) * dtype.itemsize < HUGE_PAGE:
        return torch.empty(shape, dtype=dtype)
    return Arena().array(shape, dtype)
