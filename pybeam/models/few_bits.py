"""Which layer has weights of 8 or 4 bits, on a CPU and on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError
from pybeam.backends.packing import INTEGERS, Quantised
from pybeam.models.linear import Linear

# of GPUs that multiply integers: their tensor cores have bfloat16
OLDEST = (8, 0)


def check_device(dtype: torch.dtype, device: torch.device) -> None:
    """Raise ValueError where a device has no layers of this dtype."""
    if dtype in INTEGERS:
        # tensors of "meta" have no memory, and stand for those of a GPU
        if device.type not in ("cpu", "cuda", "meta"):
            reason = "integers are for CPUs and GPUs of NVIDIA; use 'float16' or 'bfloat16'"
            raise ArgumentError("dtype", f"must not be {dtype} on {device}, because {reason}")
        if device.type == "cuda" and torch.cuda.is_available():
            found = torch.cuda.get_device_capability(device)
            if found < OLDEST:
                reason = "it takes compute capability 8.0 or more; use 'float16'"
                raise ArgumentError(
                    "dtype", f"must not be {dtype} on {device}, which has {found}: {reason}"
                )
        return
    from pybeam.models import float8

    if problem := float8.device_problem(device):
        raise ArgumentError("dtype", f"{dtype} {problem}")


def linear(
    weight: Tensor | Quantised, bias: Tensor | None, activation: str | None, is_packed: bool
) -> Linear | None:
    """Make the layer of integers, or of floats that become E4M3; None: it is one of other weights, too."""
    if isinstance(weight, Tensor):
        from pybeam.models import float8

        return float8.linear(weight, bias, activation) if float8.can_round(weight) else None
    if not is_packed:
        from pybeam.models.narrow import NarrowLinear

        return NarrowLinear(weight, bias, activation)
    if weight.scale.ndim == 2:
        from pybeam.models.int4 import Int4Linear

        return Int4Linear(weight, bias, activation)
    return None
