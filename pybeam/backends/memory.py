"""Memory on a CPU for arrays that are read again and again."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterator

import torch
from torch import Tensor

from pybeam.backends import poison

# of memory that processors address as one; smaller arrays stay in a cache
HUGE_PAGE = 1 << 21


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


def large_array(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return memory in huge pages where it takes many pages and the system has such ones.

    A step reads all weights of a large model and all keys and values of its sources, and waits for
    nothing else.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    # a page more, so that numbers begin where a page does; what nobody touches costs nothing
    pages = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    first = -memory.data_ptr() % HUGE_PAGE
    # a huge page at the end would hold little
    pages.madvise(mmap.MADV_HUGEPAGE, first, size // HUGE_PAGE * HUGE_PAGE)
    array = memory[first : first + size].view(dtype).view(shape)
    poison.forget([array])
    return array
