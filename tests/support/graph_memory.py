"""A model of the memory that torch gives to CUDA graphs, so that captures run without a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from contextlib import contextmanager
from itertools import count
from threading import get_ident
from weakref import WeakKeyDictionary, ref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pybeam.backends import poison
from pybeam.backends.waiting import WAITING
from pybeam.engine.cuda_graphs import MAX_STREAMS, Captured, CudaCapture, StepGraphs
from pybeam.engine.workspace import Workspace
from pybeam.models.transformer.running import StackRunner


class GraphMemory:
    """Pools, streams and cuBLAS's workspaces of a process.

    A pool is open as long as a graph uses it. Then it is erased by `empty_cache`, unless something in it is
    alive; as long as it is not, it cannot be opened again. An operator that waits for the device breaks the
    capture that it is in, which then raises where it ends, too. A graph that dies in it breaks it silently.

    Args:
        torch: "2.11", where nothing frees a workspace, or a newer one, where a graph that is reset frees that
            of its stream. Before "2.13" the allocator does not know that a broken capture has ended, and its
            graph stays a user of the pool for good.
    """

    def __init__(self, torch: str) -> None:
        self.keeps_workspaces = torch == "2.11"
        self.knows_broken_ends = torch not in ("2.11", "2.12")
        self.underway: list[int] = []  # pools of captures, as the allocator knows them
        self.users: Counter[int] = Counter()  # graphs of each pool
        self.workspaces: dict[_Stream, _CublasWorkspace] = {}
        self.tensors: list[tuple[int, ref]] = []  # those that captured steps made, and their pools
        self.capturing: _Graph | None = None
        self._handles = count()
        self._streams = [_Stream() for _ in range(MAX_STREAMS)]
        self._drawn = count()
        self.current = _Stream()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have `torch.cuda` use this memory."""
        fakes = dict(
            Stream=lambda device=None: self._streams[next(self._drawn) % MAX_STREAMS],
            CUDAGraph=lambda: _Graph(self),
            graph_pool_handle=lambda: next(self._handles),
            stream=lambda stream: _Within(self, stream),
            current_stream=lambda device=None: self.current,
            current_device=lambda: 0,
            empty_cache=self._empty_cache,
        )
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._end_allocating)
        # on a GPU no memory of logits outlives a step
        monkeypatch.setattr(StackRunner, "_logits_of", _fresh_logits)
        _note_constants(monkeypatch)

    def workspace(self) -> _CublasWorkspace:
        """The workspace of the current stream; new ones are allocated where the stream allocates."""
        pool = self.capturing.pool if self.capturing else None
        return self.workspaces.setdefault(self.current, _CublasWorkspace(pool))

    def hand_out_again(self, pool: int) -> None:
        """Poison what captured steps made in this pool: they all use the same memory, each when it runs."""
        made = [tensor() for own, tensor in self.tensors if own == pool]
        poison.forget([tensor for tensor in made if tensor is not None])

    def _end_allocating(self, device: int, pool: int) -> None:
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def _empty_cache(self) -> None:
        assert not self.underway, "captures_underway.empty() INTERNAL ASSERT FAILED"
        alive = {workspace.pool for workspace in self.workspaces.values()}
        alive |= {pool for pool, tensor in self.tensors if tensor() is not None}
        for pool in [pool for pool, users in self.users.items() if not users]:
            if pool not in alive:
                del self.users[pool]


def _fresh_logits(runner: StackRunner, num_rows: int) -> torch.Tensor:
    return torch.empty(num_rows, runner._output.num_columns)


class _Stream:
    def synchronize(self) -> None:
        pass


class _CublasWorkspace:
    def __init__(self, pool: int | None) -> None:
        self.pool = pool


class _Within(TorchDispatchMode):
    """Everything within is on that stream, and products need a workspace there."""

    def __init__(self, memory: GraphMemory, stream: _Stream) -> None:
        super().__init__()
        self._memory, self._stream = memory, stream

    def __enter__(self):
        self._before, self._memory.current = self._memory.current, self._stream
        return super().__enter__()

    def __exit__(self, *error):
        self._memory.current = self._before
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        memory = self._memory
        if memory.capturing and func._schema.name in WAITING:
            memory.capturing.is_broken = True
            raise torch.AcceleratorError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        is_product = func._schema.name in ("aten::mm", "aten::matmul", "aten::addmm")
        workspace = memory.workspace() if is_product else None
        if memory.capturing:
            memory.tensors.append((memory.capturing.pool, ref(result)))
            memory.capturing.workspaces |= {workspace} - {None}
        return result


class _Graph:
    def __init__(self, memory: GraphMemory) -> None:
        self._memory, self._is_alive, self.is_broken = memory, False, False
        self._uses_pool = False
        self.workspaces: set[_CublasWorkspace] = set()

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        memory = self._memory
        if memory.users.get(pool) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        assert memory.capturing is None and capture_error_mode == "thread_local"
        memory.users[pool] += 1
        memory.underway.append(pool)
        memory.capturing, self.pool, self._stream = self, pool, memory.current
        self._uses_pool, self.thread = True, get_ident()

    def capture_end(self) -> None:
        memory = self._memory
        if memory.capturing is not self:
            raise RuntimeError("capture_end() called before capture_begin()")
        memory.capturing = None
        if not self.is_broken or memory.knows_broken_ends:
            memory.underway.remove(self.pool)
        if self.is_broken:
            raise torch.AcceleratorError("operation failed due to a previous error during capture")
        self._is_alive = True

    def replay(self) -> None:
        assert self._is_alive, "this graph was reset"
        alive = self._memory.workspaces.values()
        assert self.workspaces and self.workspaces <= set(alive), "illegal memory access"
        self._memory.hand_out_again(self.pool)

    def reset(self) -> None:
        memory = self._memory
        if self._is_alive and memory.capturing and memory.capturing.thread == get_ident():
            # torch prints that, and raises nothing
            memory.capturing.is_broken = True
        if self._uses_pool and (self._is_alive or memory.knows_broken_ends):
            self._uses_pool = self._is_alive = False
            memory.users[self.pool] -= 1
            if not memory.keeps_workspaces:
                memory.workspaces.pop(self._stream, None)

    __del__ = reset


class _Constants(TorchDispatchMode):
    """Notes what a graph of these operators has as constants: their names, shapes and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add((str(func), _constant(args), _constant(sorted((kwargs or {}).items()))))
        return func(*args, **(kwargs or {}))


def _constant(value):
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, list | tuple):
        return tuple(map(_constant, value))
    # NaN is not equal to itself
    return repr(value)


def _note_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a capture know the constants of the step that ran without a graph before, under the same key."""
    watched, add = StepGraphs.watched, StepGraphs._add
    by_key: WeakKeyDictionary[StepGraphs, dict[Hashable, set]] = WeakKeyDictionary()

    @contextmanager
    def noted(graphs, key):
        with watched(graphs, key), _Constants() as constants:
            yield
        by_key.setdefault(graphs, {}).setdefault(key, set()).update(constants.seen)

    def added(graphs, key, step, slot):
        graphs._capture.constants = by_key[graphs][key]
        add(graphs, key, step, slot)

    monkeypatch.setattr(StepGraphs, "watched", noted)
    monkeypatch.setattr(StepGraphs, "_add", added)


class _CopiedReport(Captured):
    """A GPU copies the report before it runs the next step; a CPU would read that of the next step."""

    def __call__(self) -> torch.Tensor:
        return super().__call__().clone()


class Replays(CudaCapture):
    """Capture and replay on a CPU, in a `GraphMemory`.

    A "graph" runs the step again and checks that its memory has not changed, nor any shape or number.
    """

    constants: set[tuple] = frozenset()

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(torch.device("cpu"))
        self.workspace = workspace
        self.num_captures = self.num_replays = 0

    def addresses(self) -> list[int]:
        # as they are, and not as the workspace remembers them
        state, session = self.workspace.state, self.workspace.session
        return [buffer.data_ptr() for buffer in (*state.buffers(), *session.buffers())]

    def __call__(self, step, slot) -> Captured:
        self.num_captures += 1
        addresses, known = self.addresses(), self.constants

        def recorded(slot):
            # what is captured does not run
            torch.ones(2, 2) @ torch.ones(2, 2)
            return slot.new_zeros(1 + 7 * slot.numel())

        captured = super().__call__(recorded, slot)

        def replay() -> None:
            assert self.addresses() == addresses, "a graph would write to memory that was replaced"
            self.num_replays += 1
            captured.replay()
            with _Constants() as constants:
                made.report = step(slot)
            others = constants.seen - known
            assert not others, (
                f"a graph would go on with former constants, but now there is {others}"
            )

        made = _CopiedReport(replay, captured.slot, captured.report)
        return made


class Recomputed:
    """In place of CUDA graphs: counts captures and replays. A replay computes the step again."""

    def __init__(self) -> None:
        self.num_captures = self.num_replays = 0

    def __call__(self, step, slot) -> Captured:
        self.num_captures += 1

        def replay() -> None:
            self.num_replays += 1
            # the next step must not change what the host has not read yet
            captured.report = step(slot)

        captured = Captured(replay, slot, slot)
        return captured

    def renew(self) -> None:
        """Nothing is kept here."""
