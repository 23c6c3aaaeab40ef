"""Run whole steps as CUDA graphs: capture each size once, and replay it with one launch."""

from __future__ import annotations

import gc
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from pybeam.backends.waiting import HostReadGuard, NoWaiting
from pybeam.triton_kernels import counters

# A graph of a deep model holds a few megabytes on the device. Sizes are rounded up to buckets, so that the
# sizes that a stream keeps coming back to have room.
MAX_GRAPHS = 128
# torch has so many streams per device, and gives them out in turn
MAX_STREAMS = 32
# One failure says little: another thread that waits for the whole device breaks a capture, too.
MAX_FAILURES = 3
# of the programs of a launch that wait for one another
NUM_COUNTERS = 1 << 16
CPU = torch.device("cpu")

Step = Callable[[Tensor], Tensor]


class Captured:
    """A step with fixed addresses: `replay` runs it for the slots in `slot` and fills `report`."""

    def __init__(self, replay: Callable[[], None], slot: Tensor, report: Tensor) -> None:
        self.replay, self.slot, self.report = replay, slot, report

    def __call__(self) -> Tensor:
        """Return the report. The next replay of the same pool overwrites it."""
        self.replay()
        return self.report


class _Numbers:
    """The numbers, such as slots, that all captured work with so many of them reads."""

    def __init__(self, numbers: Tensor) -> None:
        self.tensor, self._given = numbers.clone(), numbers

    def give(self, numbers: Tensor) -> None:
        """Have the next replays read these. Other numbers are always another tensor."""
        if numbers is not self._given:
            self.tensor.copy_(numbers, non_blocking=True)
            self._given = numbers


class Capture(Protocol):
    """Makes graphs of steps."""

    def __call__(self, step: Step, slot: Tensor) -> Captured:
        """Capture a step, which does not run yet."""

    def renew(self) -> None:
        """Be told that all graphs so far are gone."""


class CudaCapture:
    """Capture steps. The graphs of one object share a private memory pool, and live and die together.

    They share a stream, too, and with it cuBLAS's workspace, whose address they hold. torch 2.11 keeps it
    for good: in a private pool it would keep the pool half alive, which then cannot be opened again. Newer
    versions free it with the first graph of that stream that dies. So the workspace is outside the pool, no
    other object captures on that stream, and no graph dies alone.
    """

    _living: ClassVar[weakref.WeakSet[CudaCapture]] = weakref.WeakSet()
    # one thread must not wait for the device while another captures
    _lock = Lock()

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        self._graphs: list[torch.cuda.CUDAGraph] = []
        # outside the pool, so that no graph needs to clear them: kernels leave zeros, and no two graphs of
        # one object run at a time
        self._counters = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=device)
        self.renew()

    def renew(self) -> None:
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        # a pool whose last graph has died cannot be used again
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step, slot: Tensor) -> Captured:
        with self._lock:
            if self._stream is None:
                self._stream = self._own_stream()
                self._living.add(self)
            # former graphs may still run
            torch.cuda.current_stream(self._device).synchronize()
            if not self._graphs:
                # the allocator cannot take back unused memory while it is in a capture
                torch.cuda.empty_cache()
            # `torch.cuda.graph` would empty the caches, those of pinned memory too, before every graph
            with torch.cuda.stream(self._stream):
                self._make_workspace(self._stream)
                return self._captured(step, slot)

    def _captured(self, step: Step, slot: Tensor) -> Captured:
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        try:
            with garbage_kept(), counters.lent(self._counters):
                # other threads may allocate memory meanwhile
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                report = step(slot)
                graph.capture_end()
        except BaseException:
            self._abandon(graph)
            raise
        return Captured(graph.replay, slot, report)

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that has failed. Errors of its end say less than the one that came first."""
        with suppress(Exception):
            graph.capture_end()
        # torch 2.11 and 2.12 forget this when a capture does not end well, and then refuse to empty the cache
        # for good. Newer versions raise, as they have done it.
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)

    def _own_stream(self) -> torch.cuda.Stream:
        others = {capture._stream for capture in self._living}
        for _ in range(MAX_STREAMS):
            stream = torch.cuda.Stream(self._device)
            if stream not in others:
                return stream
        raise RuntimeError(
            f"all {MAX_STREAMS} streams of {self._device} belong to decoders with graphs; "
            "release some (Decoder.release())"
        )

    def _make_workspace(self, stream: torch.cuda.Stream) -> None:
        """Have cuBLAS and cuBLASLt allocate what this thread's products on the stream need."""
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(16, 16, dtype=dtype, device=self._device)
            torch.addmm(x[0], x, x @ x)
        stream.synchronize()


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Within this context Python collects no garbage, in which a graph may be.

    CUDA lets no thread destroy a graph while it captures another one. That breaks the capture, and only its
    next launch raises. The engines of a service refer to each other, so it leaves its graphs as garbage.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class StepGraphs:
    """Captured steps by size, at most `max_graphs` of them.

    A size runs without a graph the first time, which compiles its kernels (`watched`). It is captured when it
    is asked for again, and replayed from then on. Graphs are dropped all at once: when there is no room for
    another, and when a tensor that lives between steps is replaced, because they would write to the old one.
    No step is captured that waits for the device. If one does, or if its capture raises `MAX_FAILURES` times
    one after another, all steps go on without graphs, with a warning.

    Args:
        capture: captures a step; see `CudaCapture`.
        max_graphs: how many there is room for.
        device: where steps run. The slots may come from the host, from pinned memory.
    """

    def __init__(
        self,
        capture: Capture,
        max_graphs: int = MAX_GRAPHS,
        device: torch.device = CPU,
    ) -> None:
        self._capture, self._max_graphs, self._device = capture, max_graphs, device
        self._is_off = False
        self._ready: set[Hashable] = set()
        self._waited: set[Hashable] = set()
        self._failures: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, Captured] = {}
        self._numbers: dict[int, _Numbers] = {}  # by how many they are
        # address and shape: what has grown twice may be back at its first address
        self._places: list[tuple[int, torch.Size]] = []
        self._buffers: Iterable[Tensor] = ()

    def __len__(self) -> int:
        return len(self._graphs)

    def get(
        self, key: Hashable, buffers: Iterable[Tensor], step: Step, slot: Tensor
    ) -> Captured | None:
        """Return the captured step of these slots for a key, which names everything that is constant in it.

        Returns None if the step must run without a graph. `buffers` are compared with those of the last
        call, unless they are the same object.
        """
        if self._is_off:
            return None
        if buffers is not self._buffers:
            self._buffers = buffers
            places = [(buffer.data_ptr(), buffer.shape) for buffer in buffers]
            if places != self._places:
                self._clear()
                self._ready.clear()
                self._waited.clear()
                self._places = places
        if key not in self._ready:
            return None
        if key not in self._graphs:
            self._add(key, step, slot)
        found = self._graphs.get(key)
        if found is not None:
            self._numbers[slot.numel()].give(slot)
        return found

    def run(
        self,
        key: Hashable,
        buffers: Iterable[Tensor],
        step: Step,
        slot: Tensor,
        *,
        recurs: bool = False,
    ) -> Tensor:
        """Do a step by its graph, if there is one; see `get`. One that recurs is captured at once."""
        captured = self.get(key, buffers, step, slot)
        if captured is not None:
            return captured()
        there = slot.to(self._device, non_blocking=True)
        with self.watched(key):
            report = step(there)
        if recurs:
            self.get(key, buffers, step, slot)
        return report

    @contextmanager
    def watched(self, key: Hashable) -> Iterator[None]:
        """A context for a step without a graph, which shows whether one can hold it."""
        if self._is_off:
            yield
            return
        waits: list[str] = []
        with NoWaiting(waits.append), HostReadGuard(waits.append):
            yield
        if not waits:
            self._ready.add(key)
        elif key in self._waited:
            self._give_up(waits[0])
        else:
            # it may have made constants, which it keeps
            self._waited.add(key)

    def _add(self, key: Hashable, step: Step, slot: Tensor) -> None:
        if len(self._graphs) >= self._max_graphs:
            self._clear()
        try:
            if slot.numel() not in self._numbers:
                self._numbers[slot.numel()] = _Numbers(slot.to(self._device))
            self._graphs[key] = self._capture(step, self._numbers[slot.numel()].tensor)
            self._failures.pop(key, None)
        except Exception as error:
            self._note_failure(key, error)

    def _note_failure(self, key: Hashable, error: Exception) -> None:
        """Have the step run without a graph once more. A name for an error in `_add` would keep it alive."""
        # what raises without a graph, too, says there whose fault it is
        cause = error.__cause__ or error
        self._ready.discard(key)
        if isinstance(cause, torch.OutOfMemoryError):
            # without the graphs there are there may be room for this one
            self._clear()
            return
        self._failures[key] += 1
        if self._failures[key] == MAX_FAILURES:
            self._give_up(_story_of(cause))

    def _give_up(self, problem: str) -> None:
        """Go on without graphs."""
        self._is_off = True
        self._clear()
        message = "a step could not be captured as a CUDA graph, so that the decoder goes on without graphs"
        with warnings.catch_warnings():
            # a filter that makes errors of warnings must not lose the report of a step that is done
            warnings.simplefilter("default")
            warnings.warn(f"{message}: {problem}", RuntimeWarning, stacklevel=2)

    def _clear(self) -> None:
        self._graphs.clear()
        self._numbers.clear()
        self._capture.renew()


def _story_of(error: BaseException) -> str:
    """The text of an error behind those that led to it: ``KeyError: 3; then in tree.py:9: ValueError: …``."""
    told = f"{_place_of(error)}{type(error).__name__}: {error}"
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return told if before is None else f"{_story_of(before)}; then {told}"


def _place_of(error: BaseException) -> str:
    """The innermost line of this library that an error went through: ``in token_tree.py:215: ``."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").startswith("pybeam."):
            place = f"in {Path(frame.f_code.co_filename).name}:{line}: "
    return place


def capture_between_steps(workspace: Any) -> None:
    """Have a `Workspace` capture what opens and closes beams, and encoders, beside its steps."""
    # weak, so that what is released is freed at once
    owner: Any = weakref.proxy(workspace)

    def replay(key: Hashable, work: Step, numbers: Tensor) -> Tensor:
        graphs: StepGraphs = owner.graphs
        return graphs.run(key, owner.buffers(), work, numbers)

    def replay_encoder(key: Hashable, work: Step, numbers: Tensor) -> Tensor:
        # it makes room while it goes on
        owner.room.may_have_grown = True
        return replay(key, work, numbers)

    workspace.state.replay, workspace.session.replay = replay, replay_encoder
