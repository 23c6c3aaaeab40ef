"""Programmatic dependent launch: a kernel is set up while the one before it ends, and waits for its results.

A kernel that is marked `@begins_early` begins with `await_kernels()`, which lets the next kernel be set up
and then waits. So no program reads or writes anything before all earlier kernels of the stream have ended and
their results can be seen: one waits for the kernel before it, which has waited for its own. Therefore every
kernel waits in every program, even where it has nothing to do. Several kernels may stand on the device, as
far as it has room, and wait in turn. Kernels of others, such as cuBLAS's products, begin and end as ever.
`product` alone reads weights, biases and norms before it waits, because no kernel of a step writes them.

It takes compute capability 9.0. PYBEAM_DEPENDENT_LAUNCH=0 in the environment turns it off.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

IS_ON = os.environ.get("PYBEAM_DEPENDENT_LAUNCH") != "0" and not triton.knobs.runtime.interpret
WAITS = tl.constexpr(IS_ON)
CAN_WAIT = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def await_kernels(IS_FENCE: tl.constexpr = False):
    """Let the next kernel of the stream be set up, and wait until all earlier ones have ended.

    A fence stays where kernels do not begin early. It waits for nothing there, but no load moves past it.
    """
    if WAITS or IS_FENCE:
        if CAN_WAIT and cuda_capability_geq(9, 0):
            if WAITS:
                tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()


class MarkedKernel:
    """A kernel that is launched before the one before it has ended, where a device can do that.

    Triton is told to make one operation, with one rounding, of a product and a sum, as it did before. 3.9
    warns where that is left to a default, which the next version changes.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        options = {"launch_pdl": can_begin_early()} if IS_ON else {}
        return partial(self.kernel[grid], enable_fp_fusion=True, **options)


def begins_early(kernel: Any) -> Any:
    """Mark a kernel whose first statement is `await_kernels()`."""
    return MarkedKernel(kernel)


def one_variant(layout: Sequence[str] = (), anywhere: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Mark a kernel that begins early, and of which one variant serves all values of its numbers.

    Numbers are the parameters in small letters without `p_`. Those of `layout` are left out: multiples of 16
    among them let the compiler read many bytes at once. Arrays `anywhere` need not begin at a multiple of 16
    bytes, and no variant is compiled for those that do.
    """

    def mark(function: Any) -> Any:
        names = inspect.signature(function).parameters
        numbers = [name for name in names if name.islower() and not name.startswith("p_")]
        numbers = [name for name in numbers if name not in layout]
        mark = triton.jit(do_not_specialize=numbers, do_not_specialize_on_alignment=anywhere)
        return begins_early(mark(function))

    return mark


def can_begin_early() -> bool:
    """Whether the current GPU can; without a GPU kernels are compiled for one elsewhere that can."""
    return not torch.cuda.is_available() or _can_begin_early(torch.cuda.current_device())


@cache
def _can_begin_early(device: int) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
