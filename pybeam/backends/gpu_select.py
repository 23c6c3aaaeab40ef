"""`select` in a step on a GPU: the kernel in CUDA C++ where it was measured to be faster, or Triton's."""

from __future__ import annotations

from functools import cache

from torch import Tensor

from pybeam import backends
from pybeam.contracts import MASK_WIDTH, SelectOptions, Survivors
from pybeam.triton_kernels.select import select as triton_select

# On an H200 (26 November 2026), microseconds in CUDA C++ and in Triton, in bfloat16: 13 and 32 for 64 beams
# of 5 rows and 8,000 columns, 52 and 116 for 64 of 50, 67 and 110 for 64 of 5 with 256,000 columns, 291 and
# 572 for one beam of 128 rows and 42,000 columns. The kernel in CUDA C++ takes no wider beams.
MOST_CANDIDATES = 256  # that the kernel in CUDA C++ ranks


@cache
def cuda_backend() -> backends.Backend | None:
    """The backend with the kernel in CUDA C++; None where the extension was built without a CUDA compiler."""
    try:
        from pybeam.backends import native
    except ImportError:
        return None
    return None if "select" in native.lacking("cuda") else backends.load("native")


def takes_cuda(logits: Tensor, options: SelectOptions) -> bool:
    """Whether the kernel in CUDA C++ is the faster one, and sees all candidates of such beams."""
    return (
        logits.is_cuda
        and options.most_places <= MASK_WIDTH
        and options.most_candidates <= MOST_CANDIDATES
        and cuda_backend() is not None
    )


def select(
    logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, options: SelectOptions
) -> Survivors:
    """See `pybeam.ops.select`."""
    own = cuda_backend() if takes_cuda(logits, options) else None
    return (own.select if own else triton_select)(logits, score, offset, width, options)
