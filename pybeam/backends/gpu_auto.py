"""``backend="auto"`` on a GPU: Triton for all operators but `select`.

`select` is CUDA C++ where measurements in `gpu_choice.py` say that it is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from pybeam.backends import gpu_choice, triton
from pybeam.backends.triton import *  # noqa: F403, all but `select` is Triton's
from pybeam.contracts import SelectOptions, Survivors

__all__ = triton.__all__

# rows of a beam that the kernel in CUDA C++ has room for, and half of the candidates
BLOCK_WIDTH = 128


def select(  # type: ignore[no-redef]
    logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, options: SelectOptions
) -> Survivors:
    rows, vocab = logits.shape
    in_cuda = native_select()
    fits = options.most_places <= BLOCK_WIDTH and options.most_candidates <= 2 * BLOCK_WIDTH
    if in_cuda is not None and fits and choose(rows, vocab, logits.itemsize) == "native":
        return in_cuda(logits, score, offset, width, options)
    return triton.select(logits, score, offset, width, options)


@cache
def native_select() -> Callable[..., Survivors] | None:
    """Return the CUDA C++ operator, or None if the extension was built without CUDA."""
    try:
        from pybeam.backends import native
    except ImportError:
        return None
    is_built = torch._C._dispatch_has_kernel_for_dispatch_key("pybeam::select", "CUDA")
    return native.select if is_built else None


@cache
def choose(rows: int, vocab: int, item_bytes: int) -> str:
    """Choose the backend by the first rule that this many rows, columns and bytes per logit fit."""
    shape = {"rows": rows, "vocab": vocab}
    for rule in gpu_choice.SELECT:
        fits = all(size <= int(rule.get(f"max_{name}", size)) for name, size in shape.items())
        if fits and rule.get("item_bytes", item_bytes) == item_bytes:
            return str(rule["backend"])
    return "triton"
