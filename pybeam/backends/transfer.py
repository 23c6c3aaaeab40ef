"""Copy small tensors between host and device, without waiting if possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

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
    # only a GPU needs it
    from pybeam.backends.pinned import packed, unpacked

    there = packed(parts, device).to(device, non_blocking=True)
    return unpacked(there, [part.shape for part in parts])


class HostCopy:
    """A copy on the host. It begins when this object is made, and is waited for when it is read."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._event, self._device = tensor, None, tensor.device
        if tensor.is_cuda:
            from pybeam.backends.pinned import begin_copy

            self._tensor, self._event = begin_copy(tensor)

    def numpy(self) -> np.ndarray:
        """Return the numbers, after waiting for them."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.numpy()

    def give_back(self) -> None:
        """Say that the numbers have been read, and nobody looks at them any more."""
        if self._event is not None:
            from pybeam.backends.pinned import give_back

            give_back(self._tensor, self._event, self._device)
