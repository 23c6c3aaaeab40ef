"""The one timer: CUDA events around graph replays, L2 flushed, inputs rotated, median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]
FLUSH_BYTES = 256 << 20
REPLAYS = 15


class Timer:
    """Times calls on one device; on a CPU, for trying the benchmarks out, with the host's clock."""

    def __init__(self, device: torch.device):
        self.device = device
        self._is_cuda = device.type == "cuda"
        size = FLUSH_BYTES if self._is_cuda else 1
        self._flush = torch.zeros(size, dtype=torch.uint8, device=device)

    def graphed_us(self, calls: Sequence[Call]) -> float:
        """Microseconds per call when the calls follow one another in a graph."""
        if not self._is_cuda:
            return self._host_us(calls)
        return self._device_us(captured(calls).replay) / len(calls)

    def eager_us(self, calls: Sequence[Call]) -> float:
        """Microseconds per call when the calls are made one after another."""
        if not self._is_cuda:
            return self._host_us(calls)

        def all_calls() -> None:
            for call in calls:
                call()

        return self._device_us(all_calls) / len(calls)

    def _device_us(self, run: Call) -> float:
        run()
        events = []
        for _ in range(REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._flush.zero_()
            start.record()
            run()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return 1e3 * statistics.median(start.elapsed_time(end) for start, end in events)

    def _host_us(self, calls: Sequence[Call]) -> float:
        seconds = []
        for call in calls:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return 1e6 * statistics.median(seconds)


def captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """A graph of the calls, after each has run twice, so that nothing is compiled in the capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:1] * 2 + list(calls[1:]):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def num_copies(num_bytes: int) -> int:
    """How many inputs to rotate: enough to leave the L2, not too many for the memory."""
    return max(4, min(20, FLUSH_BYTES // max(num_bytes, 1)))
