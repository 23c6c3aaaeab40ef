"""Copy small tensors between host and device, without waiting if possible."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def to_device(values, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy numbers (lists, an array, a tensor on the host) to the device. The host does not wait."""
    tensor = torch.as_tensor(values, dtype=dtype)
    if device.type != "cuda":
        return tensor.to(device)
    # a copy from memory that is not pinned would wait for all work before it
    return tensor.pin_memory().to(device, non_blocking=True)


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
        self._wait()
        return self._tensor.numpy()

    def tolist(self) -> list:
        """Return the numbers as a list, after waiting for them."""
        self._wait()
        return self._tensor.tolist()

    def _wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()
