"""Numbers on their way to a GPU and back: one copy from pinned memory, and work on them that may be captured.

torch waits for a copy from or to memory that is not pinned. To pin new memory costs the host more than the
copy. So numbers are written to pinned memory of torch, which gives it out again when the copy is done, and
memory that comes back to the host is used again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# numbers of 4 bytes that are 16 bytes
ALIGNED = 4
# of copies whose memory is kept
MOST_SHAPES = 64

# Do `work(numbers)`, or replay it with other numbers. The key names everything that is constant in it.
# Numbers come from the host (`packed`), and `work` gets them on the device. The next replay may overwrite
# the result.
Replay = Callable[[Hashable, Callable[[Tensor], Tensor], Tensor], Tensor]
# of copies to the host that have been read
_idle: dict[tuple, list[tuple[Tensor, torch.cuda.Event]]] = {}


class Floats(NamedTuple):
    """Arrays of float32 that stand one behind another in an array of this shape, and zeros behind them.

    Their bits go up as they are: ``piece.view(torch.float32)`` is the array.
    """

    shape: tuple[int, ...]
    parts: Sequence[np.ndarray]

    def write(self, numbers: np.ndarray) -> None:
        """Write them to the beginning of these numbers [n] int32."""
        place = numbers[: math.prod(self.shape)].view(np.float32)
        for part in self.parts:
            own, place = np.split(place, [part.size])
            own.reshape(part.shape)[...] = part
        place.fill(0)


def packed(arrays: Sequence[np.ndarray | Floats], device: torch.device) -> Tensor:
    """Return arrays of numbers as one tensor [n] int32 of the host, which a device may copy at any time.

    They begin where kernels read fastest.
    """
    *firsts, total = _firsts([array.shape for array in arrays])
    if device.type == "cuda":
        whole = torch.empty(total, dtype=torch.int32, pin_memory=True)
        numbers = whole.numpy()
    else:
        numbers = np.empty(total, dtype=np.int32)
        whole = torch.from_numpy(numbers)
    for array, first in zip(arrays, firsts, strict=True):
        if isinstance(array, Floats):
            array.write(numbers[first:])
        else:
            numbers[first : first + array.size] = array.ravel()
    return whole


def unpacked(whole: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Return the arrays of these shapes that `packed` has put into one."""
    # one operator of torch for each piece
    return [
        whole.as_strided(shape, [math.prod(shape[i + 1 :]) for i in range(len(shape))], first)
        for shape, first in zip(shapes, _firsts(shapes), strict=False)
    ]


def padded(numbers: np.ndarray, *shape: int, fill: int = 0) -> np.ndarray:
    """Return int32 numbers of that shape: these, and others behind them."""
    whole = np.full(shape, fill, dtype=np.int32)
    whole[tuple(map(slice, numbers.shape))] = numbers
    return whole


def replayed(
    replay: Replay,
    name: Hashable,
    work: Callable[..., Tensor | None],
    arrays: Sequence[np.ndarray | Floats],
    device: torch.device,
) -> Tensor:
    """Call `work` with these arrays of int32 numbers on the device, and return its result.

    The name and the shapes say everything that is constant in it.
    """
    shapes = tuple(array.shape for array in arrays)

    def call(numbers: Tensor) -> Tensor:
        result = work(*unpacked(numbers, shapes))
        return numbers if result is None else result

    return replay((name, shapes), call, packed(arrays, device))


def begin_copy(tensor: Tensor) -> tuple[Tensor, torch.cuda.Event]:
    """Begin to copy a tensor to the host. Returns the copy, and what says that it is there."""
    try:
        copy, event = _idle[tensor.shape, tensor.dtype, tensor.device].pop()
    except (KeyError, IndexError):
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        event = torch.cuda.Event()
    copy.copy_(tensor, non_blocking=True)
    event.record(current_stream(tensor.device))
    return copy, event


def give_back(copy: Tensor, event: torch.cuda.Event, device: torch.device) -> None:
    """Use the memory of a copy again that has been read."""
    if len(_idle) >= MOST_SHAPES:
        _idle.clear()
    _idle.setdefault((copy.shape, copy.dtype, device), []).append((copy, event))


def current_stream(device: torch.device) -> torch.cuda.Stream:
    """Do what `torch.cuda.current_stream` does, at a tenth of the cost."""
    return _stream(torch._C._cuda_getCurrentStream(device.index or 0))


@cache
def _stream(identity: tuple[int, int, int]) -> torch.cuda.Stream:
    """The stream that torch knows by these numbers. To make one costs more than to use it."""
    stream_id, device_index, device_type = identity
    return torch.cuda.Stream(
        stream_id=stream_id, device_index=device_index, device_type=device_type
    )


def _firsts(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """The first place of each array of these shapes, and the place behind all."""
    return [0, *accumulate(-(-math.prod(shape) // ALIGNED) * ALIGNED for shape in shapes)]
