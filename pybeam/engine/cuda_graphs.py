"""Run whole steps as CUDA graphs: capture each size once, and replay it with one launch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

# A graph of a deep model holds a few megabytes on the device. Sizes are rounded up to buckets, four to a
# power of two, so 32 graphs hold the sizes that a stream keeps coming back to.
MAX_GRAPHS = 32

Step = Callable[[Tensor], Tensor]


class Captured(NamedTuple):
    """A step with fixed addresses: `replay` runs it for the slots in `slot` and fills `report`."""

    replay: Callable[[], None]
    slot: Tensor
    report: Tensor

    def __call__(self, slot: Tensor) -> Tensor:
        """Return the report. The next replay of the same pool overwrites it."""
        self.slot.copy_(slot)
        self.replay()
        return self.report


class CudaCapture:
    """Capture steps. The graphs of one object share a private memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step, slot: Tensor) -> Captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            report = step(slot)
        return Captured(graph.replay, slot, report)


class StepGraphs:
    """Captured steps by size, at most `max_graphs` of them. The one unused for longest is dropped first.

    A size runs without a graph the first time, which compiles its kernels. It is captured the second time and
    replayed from then on. When a tensor that lives between steps grows and is replaced, all graphs are
    dropped, because they would write to the old one.

    Args:
        capture: captures a step; see `CudaCapture`.
    """

    def __init__(
        self, capture: Callable[[Step, Tensor], Captured], max_graphs: int = MAX_GRAPHS
    ) -> None:
        self._capture, self._max_graphs = capture, max_graphs
        self._graphs: OrderedDict[Hashable, Captured | None] = OrderedDict()  # None: seen once
        self._addresses: tuple[int, ...] = ()

    def __len__(self) -> int:
        return sum(captured is not None for captured in self._graphs.values())

    def get(
        self, key: Hashable, buffers: Iterable[Tensor], step: Step, slot: Tensor
    ) -> Captured | None:
        """Return the captured step for this key, which names everything that is constant in it.

        Returns None if the step must run without a graph.
        """
        addresses = tuple(buffer.data_ptr() for buffer in buffers)
        if addresses != self._addresses:
            self._graphs.clear()
            self._addresses = addresses
        if key not in self._graphs:
            self._graphs[key] = None
            return None
        captured = self._graphs[key]
        if captured is None:
            captured = self._graphs[key] = self._capture(step, slot.clone())
        self._graphs.move_to_end(key)
        while len(self._graphs) > self._max_graphs:
            self._graphs.popitem(last=False)
        return captured


def bucket(size: int) -> int:
    """Return the smallest bucket that holds so many. There are four between a power of two and the next."""
    step = 1 << max(0, (size - 1).bit_length() - 3)
    return -(-size // step) * step
