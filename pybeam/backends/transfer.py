"""Copy small tensors between host and device, without waiting if possible."""

from __future__ import annotations

import math
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
    return unpacked(to_device(packed(parts), torch.int32, device), [part.shape for part in parts])


def packed(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays of numbers as one array [n] int32."""
    *firsts, total = _firsts([array.shape for array in arrays])
    whole = np.zeros(total, dtype=np.int32)
    for array, first in zip(arrays, firsts, strict=True):
        whole[first : first + array.size] = array.ravel()
    return whole


def unpacked(whole: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Return the arrays of these shapes that `packed` has put into one."""
    # one operator of torch for each piece
    return [
        whole.as_strided(shape, [math.prod(shape[i + 1 :]) for i in range(len(shape))], first)
        for shape, first in zip(shapes, _firsts(shapes), strict=False)
    ]


def _firsts(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """The first place of each array of these shapes, and the place behind all."""
    return [0, *accumulate(-(-math.prod(shape) // ALIGNED) * ALIGNED for shape in shapes)]


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
