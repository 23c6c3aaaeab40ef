"""Copy small tensors between host and device, without waiting if possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

# numbers of 4 bytes that are 16 bytes
ALIGNED = 4
_OF_NUMPY = {torch.int32: np.int32, torch.int64: np.int64}


def to_device(values, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers (lists, an array, a tensor) on the device. The host does not wait."""
    if isinstance(values, list) and dtype in _OF_NUMPY:
        # NumPy reads a list sooner than torch
        values = np.array(values, dtype=_OF_NUMPY[dtype])
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    # a copy from memory that is not pinned would wait for all work before it
    return tensor.pin_memory().to(device, non_blocking=True)


def all_to_device(arrays: Sequence, device: torch.device) -> list[Tensor]:
    """Copy arrays of int32 numbers to the device, in one copy. They begin where kernels read fastest.

    On the host they may stay where they are.
    """
    parts = [np.ascontiguousarray(array, dtype=np.int32) for array in arrays]
    if device.type == "cpu":
        return list(map(torch.from_numpy, parts))
    firsts = [0, *accumulate(-(-part.size // ALIGNED) * ALIGNED for part in parts)]
    whole = np.zeros(firsts.pop(), dtype=np.int32)
    for part, first in zip(parts, firsts, strict=True):
        whole[first : first + part.size] = part.ravel()
    copied = to_device(whole, torch.int32, device)
    # one operator of torch for each piece
    return [
        copied.as_strided(part.shape, [step // part.itemsize for step in part.strides], first)
        for part, first in zip(parts, firsts, strict=True)
    ]


class HostCopy:
    """A copy on the host. It begins when this object is made, and is waited for when it is read."""

    def __init__(self, tensor: Tensor) -> None:
        self._event = None
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._tensor = tensor

    def numpy(self) -> np.ndarray:
        """Return the numbers, after waiting for them."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.numpy()
