"""Counters that tell a program whether it is the last one of its group."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_per_stream: dict[tuple[torch.device, int], Tensor] = {}
_lent = threading.local()


def counters(num: int, device: torch.device) -> Tensor:
    """Return at least `num` zeros, int32, for one launch on the current stream; the kernel leaves zeros.

    Launches of one stream follow one another, so they share their counters. A captured graph may run
    beside any stream, so it takes those that were lent for it; without them it gets counters of its own,
    and clears them at every replay.
    """
    lent: Tensor | None = getattr(_lent, "counters", None)
    if lent is not None and lent.numel() >= num and lent.device == device:
        return lent
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.zeros(num, dtype=torch.int32, device=device)
    place = (device, torch.cuda.current_stream(device).cuda_stream)
    held = _per_stream.get(place)
    if held is None or held.numel() < num:
        size = 1 << max(12, (num - 1).bit_length())
        held = _per_stream[place] = torch.zeros(size, dtype=torch.int32, device=device)
    return held


@contextmanager
def lent(held: Tensor) -> Iterator[None]:
    """Launches of this thread share these zeros, int32. They must follow one another, in replays too."""
    before = getattr(_lent, "counters", None)
    _lent.counters = held
    try:
        yield
    finally:
        _lent.counters = before
