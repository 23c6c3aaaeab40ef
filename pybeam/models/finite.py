"""Look for weights that are NaN or infinite, which training that diverged and damaged files leave behind."""

from __future__ import annotations

import torch
from torch import Tensor

from pybeam.arguments import ArgumentError

# by the names of files and of graphs; a token whose bias is -inf never follows
MAY_HOLD_MINUS_INF = ("final_logits_bias", "output.bias")


def refused(place: str, found: str) -> ArgumentError:
    """The error about a tensor at some place in which that was found."""
    return ArgumentError(
        "check_finite",
        f"found {found} in {place}; load another copy of the model, or switch the check off, and the "
        "sources that meet such weights fail alone",
    )


def not_finite(tensor: Tensor, name: str) -> str | None:
    """Say what a tensor of that name must not have, or None if all of it is fit.

    One pass over the memory; minimum and maximum are NaN if any number is.
    """
    if not tensor.numel():
        return None
    low, high = (float(end) for end in tensor.aminmax())
    if low != low:
        return "NaN"
    if high == torch.inf:
        return "infinity"
    return "-infinity" if low == -torch.inf and name not in MAY_HOLD_MINUS_INF else None
