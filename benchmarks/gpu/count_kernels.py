"""Count the kernels of one decoding step by phase, as a CUDA graph of it holds them, without a GPU.

The step runs on tensors without memory (device "meta"). Triton kernels are counted and not started.
Operators of torch count as so many kernels as they start on a GPU, by `KERNELS_OF`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pybeam.backends import triton as triton_backend
from pybeam.backends.arrays import NULL_SLOT
from pybeam.backends.transfer import to_device
from pybeam.engine.cuda_graphs import NUM_COUNTERS, bucket
from pybeam.engine.engine import Engine, Wants
from pybeam.engine.schedule import Schedule
from pybeam.engine.source import Source
from pybeam.engine.stats import Stats
from pybeam.engine.workspace import Workspace
from pybeam.models.base import Model
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.triton_kernels import attention_variants, counters
from tests.support.aot import recording

META = torch.device("meta")
# those of an H200
MULTIPROCESSORS = 132
# tokens of a hypothesis; the trees of few sources of so many tokens are split
LONGEST = 64
# by number; "plan" chooses the sources that move, "read" finds their rows
PHASES = ("plan", "read", "model", "process", "select", "commit", "report")

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

    `model` is on the device "meta", and so are its results, whose values are unknown. Every beam is full.
    """
    work = Workspace(model, algorithm, triton_backend)
    engine = Engine(work, schedule, Stats(), Wants(reads_late=True))
    kernels = Kernels()
    for owner, name, phase in (
        (work.state, "plan", "plan"),
        (work.state, "begin", "read"),
        (work.session, "step", "model"),
        (work.state, "process", "process"),
        (work.state, "choose", "select"),
        (work.state, "finish", "commit"),
        (work.state, "report", "report"),
    ):
        setattr(owner, name, kernels.within(phase, getattr(owner, name)))
    with torch.inference_mode(), _many_multiprocessors(), recording(lambda launch: None):
        _open(work, [_source(i, model, algorithm) for i in range(num_sources)])
        slots = [NULL_SLOT + 1 + i for i in range(num_sources)]
        slots += [NULL_SLOT] * (bucket(num_sources) - num_sources)
        slot = to_device(slots, torch.int32, META)
        limit = bucket(num_sources * algorithm.max_rows)
        step = partial(engine._step, slot, limit, LONGEST)
        # the first step makes what is kept between steps
        step()
        held = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=META)
        with kernels.counting(), counters.lent(held):
            step()
    return kernels.counts


def _source(index: int, model: Model, algorithm: Algorithm) -> Source:
    request = Request([5] * 8)
    content = model.check(request.source)
    length = model.source_length(content)
    return Source(
        index=index, request=request, content=content, algorithm=algorithm, source_length=length
    )


def _open(work: Workspace, sources: Sequence[Source]) -> None:
    """Open a beam for each of these sources."""
    slots = work.take_slots(len(sources))
    for source, slot in zip(sources, sorted(slots), strict=True):
        source.slot = slot
    work.reserve(LONGEST, [], sources)
    work.claim_pages(len(sources))
    contents = [source.content for source in sources]
    work.session.encode(contents, [source.index for source in sources], sorted(slots))
    work.state.open(sources, work.model.start_id)


@contextmanager
def _many_multiprocessors() -> Iterator[None]:
    """Split trees as on a GPU."""
    known = attention_variants.num_multiprocessors
    attention_variants.num_multiprocessors = lambda device: MULTIPROCESSORS
    try:
        yield
    finally:
        attention_variants.num_multiprocessors = known
