"""Count the kernels of one decoding step by phase, as a CUDA graph of it holds them, without a GPU.

The step runs on tensors without memory (device "meta"). Triton kernels are counted and not started.
Operators of torch count as so many kernels as they start on a GPU, by `KERNELS_OF`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.one_step import OneStep
from pybeam.backends import triton as triton_backend
from pybeam.engine.schedule import Schedule
from pybeam.models.base import Model
from pybeam.search.algorithms import Algorithm
from pybeam.triton_kernels.attention import variants
from tests.support.aot import recording

META = torch.device("meta")
# those of an H200
MULTIPROCESSORS = 132
# tokens of a hypothesis; the trees of few sources of so many tokens are split
LONGEST = 64
# by number; "read" chooses the sources that move, and finds their rows
PHASES = ("read", "model", "process", "select", "commit", "report")

# operators that only describe memory
DESCRIBES = {
    *("alias", "as_strided", "detach", "expand", "permute", "select", "slice", "split"),
    *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view"),
    *("_reshape_alias", "_unsafe_view", "lift_fresh", "empty", "empty_like", "empty_strided"),
    *("new_empty", "new_empty_strided", "resize_", "sym_size"),
}
# read in ATen's CUDA sources; any other operator is one kernel
KERNELS_OF = {"constant_pad_nd": 2, "cumsum": 2, "sort": 4, "topk": 2}


class Kernels(TorchDispatchMode):
    """Counts kernels by phase and name while it is active.

    Attributes:
        phase: what the next kernels belong to.
        counts: by phase and name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = ""
        self.counts: dict[str, Counter[str]] = {phase: Counter() for phase in PHASES}

    def note(self, name: str, num: int = 1) -> None:
        self.counts[self.phase][name] += num

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        # in inference mode operators that are made of others come here whole
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            with self:
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        name = func._schema.name.removeprefix("aten::")
        if name not in DESCRIBES:
            self.note(name, KERNELS_OF.get(name.rstrip("_"), 1))
        return func(*args, **(kwargs or {}))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count operators and launches of Triton kernels."""
        with recording(lambda launch: self.note(launch.kernel.__name__)), self:
            yield

    def within(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return this function, whose kernels belong to a phase."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            before, self.phase = self.phase, phase
            try:
                return call(*args, **kwargs)
            finally:
                self.phase = before

        return counted


def step_kernels(
    model: Model, algorithm: Algorithm, schedule: Schedule, num_sources: int
) -> dict[str, Counter[str]]:
    """Count the kernels of a step of so many sources, by phase and name.

    `model` is as for `ready_step`.
    """
    kernels = Kernels()
    with ready_step(model, algorithm, schedule, num_sources) as step, ExitStack() as phases:
        work = step.work
        for owner, name, phase in (
            (work.state, "plan", "read"),
            (work.state, "begin", "read"),
            (work.session, "step", "model"),
            (work.state.step, "_processed", "process"),
            (work.state.step, "choose", "select"),
            (work.state.step, "commit", "commit"),
            (work.state, "report", "report"),
        ):
            counted = kernels.within(phase, getattr(owner, name))
            phases.enter_context(patch.object(owner, name, counted))
        with kernels.counting():
            step()
    return kernels.counts


@contextmanager
def ready_step(
    model: Model, algorithm: Algorithm, schedule: Schedule, num_sources: int
) -> Iterator[OneStep]:
    """A step of so many sources whose Triton kernels are not started; every beam is full.

    `model` is on the device "meta", and so are its results, whose values are unknown.
    """
    with torch.inference_mode(), many_multiprocessors(), recording(lambda launch: None):
        tokens = [[5] * 8] * num_sources
        step = OneStep(model, algorithm, triton_backend, tokens, LONGEST, schedule=schedule)
        # the first step makes what is kept between steps
        step()
        yield step


@contextmanager
def many_multiprocessors() -> Iterator[None]:
    """Split trees as on a GPU."""
    known = variants.num_multiprocessors
    variants.num_multiprocessors = lambda device: MULTIPROCESSORS
    try:
        yield
    finally:
        variants.num_multiprocessors = known
