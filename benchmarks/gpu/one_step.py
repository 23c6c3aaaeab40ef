"""One step of a search in the middle of its hypotheses: made ready, and done again and again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pybeam.backends import Backend
from pybeam.backends.arrays import NULL_SLOT, PlanRules
from pybeam.backends.transfer import to_device
from pybeam.engine.buckets import bucket
from pybeam.engine.cuda_graphs import NUM_COUNTERS
from pybeam.engine.engine import Engine, StreamOptions
from pybeam.engine.schedule import Choose, Fifo, Schedule
from pybeam.engine.source import Source
from pybeam.engine.stats import Stats
from pybeam.engine.workspace import Workspace
from pybeam.models.base import Model
from pybeam.request import Request
from pybeam.search.algorithms import Algorithm
from pybeam.state.step import StepPlan
from pybeam.triton_kernels import counters


class OneStep:
    """A step of these sources, all of which move; a call does it.

    Args:
        longest: room for so many tokens in every hypothesis, the start token included.
        depth: the steps before it, which are done first. `restore` goes back to behind them.
        schedule: by default `Fifo`.
    """

    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        backend: Backend,
        tokens: Sequence[Sequence[int]],
        longest: int,
        depth: int = 0,
        schedule: Schedule | None = None,
    ) -> None:
        num = len(tokens)
        self.work = Workspace(model, algorithm, backend)
        self._engine = Engine(
            self.work, schedule or Fifo(num), Stats(), StreamOptions(reads_late=True)
        )
        self.longest = longest
        # as the engine lends them to its graphs
        self._counters = torch.zeros(NUM_COUNTERS, dtype=torch.int32, device=model.device)
        sources = [source_of(i, own, model, algorithm) for i, own in enumerate(tokens)]
        self._open(sources)
        slots = sorted(source.slot for source in sources)
        slots += [NULL_SLOT] * (bucket(num) - num)
        self.slot = to_device(slots, torch.int32, model.device)
        self.limit = bucket(num * algorithm.max_rows)
        for _ in range(depth):
            self.work.room.claim(num)
            self()
        # the step itself takes pages, too
        self.work.room.claim(num)
        self._kept = [(buffer, buffer.clone()) for buffer in self.work.state.buffers()]

    def __call__(self) -> torch.Tensor:
        """Do the step. Returns its report."""
        with counters.lent(self._counters):
            plan = StepPlan(self.slot, self.limit, self.longest)
            return self._engine._steps(plan)[1]

    def restore(self) -> None:
        """Put all books back to what they were before the step."""
        for buffer, kept in self._kept:
            buffer.copy_(kept)

    def rules(self) -> PlanRules | Choose:
        """The rules by which `BeamState.plan` chooses who moves."""
        return self._engine._schedule.planner(self.limit)

    def _open(self, sources: Sequence[Source]) -> None:
        work = self.work
        slots = sorted(work.take_slots(len(sources)))
        for source, slot in zip(sources, slots, strict=True):
            source.slot = slot
        work.room.reserve(self.longest, [], sources)
        work.room.claim(len(sources))
        contents = [source.content for source in sources]
        work.session.encode(contents, [source.index for source in sources], slots)
        work.state.open(sources, work.model.start_id)


def source_of(index: int, tokens: Sequence[int], model: Model, algorithm: Algorithm) -> Source:
    """A request as the engine holds it."""
    request = Request(list(tokens))
    content = model.check(request.source)
    length = model.source_length(content)
    return Source(
        index=index, request=request, content=content, algorithm=algorithm, source_length=length
    )
