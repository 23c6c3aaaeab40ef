"""The one timer: CUDA events around graph replays, L2 flushed, inputs rotated, median."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

Call = Callable[[], object]
FLUSH_BYTES = 256 << 20
REPLAYS = 15


class Graphed(NamedTuple):
    """Microseconds per call, and the nodes of all calls if they ran in a graph."""

    us: float
    nodes: int | None


class Timer:
    """Times calls on one device; on a CPU, for trying the benchmarks out, with the host's clock."""

    def __init__(self, device: torch.device):
        self.device = device
        self._is_cuda = device.type == "cuda"
        size = FLUSH_BYTES if self._is_cuda else 1
        self._flush = torch.zeros(size, dtype=torch.uint8, device=device)

    def graphed_us(self, calls: Sequence[Call], before: Call | None = None) -> float:
        """Microseconds per call when the calls follow one another in a graph.

        `before` is called before every replay, and its time does not count.
        """
        return self.graph_of(calls, before).us

    def graph_of(self, calls: Sequence[Call], before: Call | None = None) -> Graphed:
        """Time the calls in a graph, and count its nodes."""
        if not self._is_cuda:
            return Graphed(self._host_us(calls, before), None)
        graph = captured(calls, before)
        us = self._device_us(graph.replay, before) / len(calls)
        return Graphed(us, num_nodes(graph))

    def eager_us(self, calls: Sequence[Call]) -> float:
        """Microseconds per call when the calls are made one after another."""
        if not self._is_cuda:
            return self._host_us(calls)

        def all_calls() -> None:
            for call in calls:
                call()

        return self._device_us(all_calls) / len(calls)

    def _device_us(self, run: Call, before: Call | None = None) -> float:
        if before is not None:
            before()
        run()
        events = []
        for _ in range(REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if before is not None:
                before()
            self._flush.zero_()
            start.record()
            run()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return 1e3 * statistics.median(start.elapsed_time(end) for start, end in events)

    def _host_us(self, calls: Sequence[Call], before: Call | None = None) -> float:
        seconds = []
        for call in calls:
            if before is not None:
                before()
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return 1e6 * statistics.median(seconds)


def captured(calls: Sequence[Call], before: Call | None = None) -> torch.cuda.CUDAGraph:
    """A graph of the calls, after the first has run twice and the others once: it compiles nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in [*calls[:1], *calls]:
            if before is not None:
                before()
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def num_nodes(graph: torch.cuda.CUDAGraph) -> int | None:
    """The nodes of a graph that was kept; None if CUDA's library does not say."""
    major = (torch.version.cuda or "").partition(".")[0]
    count = ctypes.c_size_t()
    try:
        library = ctypes.CDLL(f"libcudart.so.{major}")
        arguments = ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(count)
        return None if library.cudaGraphGetNodes(*arguments) else count.value
    except (OSError, AttributeError):
        return None


def num_copies(num_bytes: int) -> int:
    """How many inputs to rotate: enough to leave the L2, not too many for the memory."""
    return max(4, min(20, FLUSH_BYTES // max(num_bytes, 1)))
