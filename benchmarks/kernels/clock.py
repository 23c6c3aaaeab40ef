"""Time on a GPU: CUDA's events around the replay of a graph of calls, behind a flush of the L2."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]
FLUSH_BYTES = 256 << 20
# a tenth of a millisecond
BUSY_CYCLES = 200_000
REPLAYS = 15


class Instant:
    """A moment on the device; its difference to an earlier one is the seconds of a call between them."""

    def __init__(self, num_calls: int) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()
        self._num_calls = num_calls

    def __sub__(self, earlier: Instant) -> float:
        self._event.synchronize()
        return earlier._event.elapsed_time(self._event) / 1e3 / self._num_calls


class Clock:
    """The timer that pytest-benchmark reads on a GPU; a round is `num_calls` calls one after another."""

    num_calls = 1

    def __call__(self) -> Instant:
        return Instant(self.num_calls)


class Replay:
    """Calls in one graph, or one after another if `is_eager`. A call of this makes all of them."""

    def __init__(
        self, calls: Sequence[Call], before: Call | None = None, is_eager: bool = False
    ) -> None:
        self._calls, self._before = calls, before
        self.num_calls = len(calls)
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self._graph = None if is_eager else captured(calls, before)
        self.num_nodes = None if self._graph is None else num_nodes(self._graph)

    def prepare(self, is_cold: bool = True) -> None:
        """Empty the L2, unless it shall keep what it has; the time of this does not count.

        The device is busy for as long as the host needs to start a replay.
        """
        if self._before is not None:
            self._before()
        if is_cold:
            self._flush.zero_()
        else:
            torch.cuda._sleep(BUSY_CYCLES)

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            for call in self._calls:
                call()


def median_us(calls: Sequence[Call], device: torch.device) -> float:
    """Microseconds per call in a graph; on a CPU, for trials, by the clock of the host."""
    if device.type == "cuda":
        return replay_us(Replay(calls))
    seconds = []
    for call in calls:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)


def replay_us(replay: Replay, is_cold: bool = True) -> float:
    """Microseconds per call; `is_cold`: with nothing in the L2."""
    clock, seconds = Clock(), []
    clock.num_calls = replay.num_calls
    for _ in range(1 + REPLAYS):
        replay.prepare(is_cold)
        start = clock()
        replay()
        seconds.append(clock() - start)
    return 1e6 * statistics.median(seconds[1:])


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


def num_copies(device: torch.device, num_bytes: float) -> int:
    """How many inputs to rotate on a GPU: enough to leave the L2, not too many for the memory.

    On a CPU a kernel finds what the kernel before it has just written.
    """
    return 1 if device.type == "cpu" else max(4, min(20, int(FLUSH_BYTES // max(num_bytes, 1))))
