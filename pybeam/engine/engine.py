"""The one loop. It never names an algorithm; an algorithm never calls the model and never loops.

A step is a program for the device: sizes are known before it starts and nothing is read back in it.
What the host must know comes in one small report per step. On a CPU the host reads it at once; on a GPU
it reads the report of one step while the device is busy with the next (`reads_late`), so it knows a
little less: how many rows there are is then an upper bound, what does not fit waits for a step, and a
source that is done is noticed one step later. Results are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import NULL_SLOT, RUNNING
from pybeam.backends.transfer import HostCopy, to_device
from pybeam.engine.admission import ENCODE_AHEAD, Admission
from pybeam.engine.attention import attended
from pybeam.engine.cuda_graphs import bucket
from pybeam.engine.partials import committed, lengthened
from pybeam.engine.request_queue import RequestQueue
from pybeam.engine.results import Leaving
from pybeam.engine.schedule import Schedule
from pybeam.engine.source import Source
from pybeam.engine.stats import PhaseClock, Stats
from pybeam.engine.workspace import Workspace
from pybeam.models.base import Alignment, Model
from pybeam.request import Partial, Result
from pybeam.search.algorithms import Algorithm
from pybeam.state.report import Report


class Pending(NamedTuple):
    """A report on its way to the host."""

    copy: HostCopy
    slots: np.ndarray  # of the sources that were live
    claimed_pages: int  # when it was sent for
    capacity: int  # of the committed prefixes behind it; 0: there are none


class Engine:
    """Decodes one stream of requests. Made anew for every `Decoder.decode` or `Decoder.stream` call."""

    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        schedule: Schedule,
        workspace: Workspace,
        stats: Stats,
        *,
        wants_log_probs: bool = False,
        wants_partials: bool = False,
        alignment: Alignment | None = None,
        reads_late: bool = False,
        check_every_step: bool = False,
    ) -> None:
        self.model, self.algorithm, self.schedule = model, algorithm, schedule
        self.stats, self.wants_log_probs = stats, wants_log_probs
        self._wants_partials = wants_partials
        self._clock = PhaseClock(stats.phase_seconds)
        self._check_every_step, self._reads_late = check_every_step, reads_late
        self._work, self._session, self._state = workspace, workspace.session, workspace.state
        self._attend = partial(attended, self._session, alignment)
        self._live: dict[int, Source] = {}  # by slot, in order of admission
        self._live_tokens = 0
        self._slots = np.zeros(0, dtype=np.int32)  # of the live sources
        self._slot = to_device(self._slots, torch.int32, model.device)  # and on the device
        # of the live sources, where the host reads late: widths, and see `Algorithm.growth`
        self._longest = self._per_step = (
            0  # tokens of a live source at most, and new ones in a step
        )
        self._widths = self._growths = np.zeros(0, dtype=np.int64)
        self._num_rows = np.zeros(0, dtype=np.int64)  # by slot, of live sources as last heard
        self._expansions = np.zeros(0, dtype=np.int64)
        self._pending: deque[Pending] = deque()
        self._leaving: deque[Leaving] = deque()
        self._resting: list[int] = []  # slots that a pending report may still name

    @torch.inference_mode()
    def run(self, requests: Iterable[Any] | RequestQueue) -> Iterator[Result | Partial]:
        """Results as they are known, in no particular order."""
        admission = self._admission = Admission(
            requests,
            self.model,
            self.algorithm,
            self.schedule,
            self._check_memory,
            wants_log_probs=self.wants_log_probs,
        )
        while True:
            if not self._live:
                yield from self._results()  # before what may wait for the next request
            yield from self._admit(admission)
            if not self._live:
                break
            self._advance()
            if len(self._pending) > self._reads_late:
                yield from self._results()
                yield from self._hear(self._pending.popleft())
            if not self._reads_late:
                yield from self._results()
        self._pending.clear()
        self._work.give_back(self._resting)

    def _advance(self) -> None:
        """One step of the sources that move."""
        self._reserve()
        work, state = self._work, self._state
        self._work.claim_pages(len(self._live))
        self.stats.pages = state.tree.num_total_pages
        longest = self._most_tokens(1)
        slot, limit = self._slot, self._row_limit() if self._reads_late else None

        def step(slot: Tensor) -> Tensor:
            return self._step(slot, limit, longest)

        captured = None
        if work.graphs is not None:
            padded = np.full(bucket(len(self._slots)), NULL_SLOT, dtype=np.int32)
            padded[: len(self._slots)] = self._slots
            slot = to_device(padded, torch.int32, self.model.device)
            key = slot.numel(), limit, state.options
            captured = work.graphs.get(key, work.buffers(), step, slot)
        if captured is None:
            report = step(slot)
        else:
            with self._clock("replay"):
                report = captured(slot)
        with self._clock("report"):
            capacity = self._most_tokens(2) if self._wants_partials else 0
            if capacity:
                prefixes = committed(state.tree, state.beams, self._slot, capacity)
                report = torch.cat((report, prefixes.view(-1)))
            self._pending.append(
                Pending(HostCopy(report), self._slots, work.claimed_pages, capacity)
            )
        self.stats.steps += 1
        if self._check_every_step:
            state.check()

    def _step(self, slot: Tensor, limit: int | None, longest: int) -> Tensor:
        """The program of one step for these slots [A]; returns the report on them.

        `limit` rows are sent through the model, or as many as there are if it is None.
        """
        state, live = self._state, slot
        with self._clock("plan"):
            num_rows = limit
            if limit is None and self.schedule.moves_all:
                num_rows = int(self._num_rows.sum())
            else:
                slot, rows_of = state.plan(self.schedule.plan, slot, limit)
                if limit is None:
                    num_rows = int(rows_of.sum())
            rows, moving = state.read(slot, num_rows, longest)
        with self._clock("model"):
            logits = self._session.step(rows)
        with self._clock("select"):
            survivors = state.select(rows, moving, state.process(logits, rows))
        with self._clock("commit"):
            self._session.advance(*state.commit(slot, survivors))
        with self._clock("report"):
            return state.report(live)

    def _row_limit(self) -> int:
        """Rows that the next step has room for: few beams will want more than what is known of them says."""
        most = np.minimum(self._widths, self._num_rows[self._slots] * self._growths).sum()
        # the widest beam must fit, or it would wait for ever
        return bucket(int(max(most, self._widths.max())))

    def _admit(self, admission: Admission) -> Iterator[Result]:
        """Refill: let the schedule take sources from the queue."""
        live_rows = int(self._num_rows.sum())
        if not self.schedule.refills(len(self._live), self._live_tokens, live_rows):
            return
        admitted: list[Source] = []
        while True:
            source = admission.next()
            if source is None:
                may_wait = not self._live and not admitted
                for result in admission.read(may_wait=may_wait):
                    yield self._counted(result)
                source = admission.next()
            num_live = len(self._live) + len(admitted)
            if source is None or not self.schedule.has_room(
                num_live,
                self._live_tokens,
                live_rows + len(admitted),
                source.source_length,
                source.algorithm.most_rows,
            ):
                break
            if num_live and source.max_bytes > self._work.free_bytes:
                break
            admitted.append(admission.take())
            self._live_tokens += source.source_length
            self._work.taken_bytes += source.max_bytes
        if not admitted:
            return
        missing = [source for source in admitted if source.slot < 0]
        if missing:
            # some that come next too, so that encoder batches are not tiny
            num_ahead = ENCODE_AHEAD - len(missing)
            self._encode(missing + admission.take_ahead(num_ahead, self._work.free_bytes))
        self._open(admitted)

    def _check_memory(self, source: Source) -> None:
        """Note what a source may need; raises ValueError if it can never fit."""
        limits, limit = source.algorithm, self._work.memory_limit
        source.max_bytes = self._work.most_bytes(
            limits.width, source.max_tokens, source.source_length
        )
        if limit is not None and source.max_bytes > limit:
            raise ValueError(
                f"this request may need {source.max_bytes / 1e6:.1f} MB for keys and values "
                f"({limits.width} rows of {source.max_tokens} tokens, {source.source_length} source "
                f"positions), but `memory_limit` is {limit / 1e6:.1f} MB; lower `width` or "
                "`max_length`, or raise the limit"
            )

    def _encode(self, sources: list[Source]) -> None:
        slots = self._work.take_slots(len(sources))
        for source, slot in zip(sources, slots, strict=True):
            source.slot = slot
        self._reserve(sources)
        missing = self._work.num_slots - len(self._num_rows)
        self._num_rows = np.pad(self._num_rows, (0, missing))
        self._expansions = np.pad(self._expansions, (0, missing))
        with self._clock("encode"):
            self._session.encode(
                [source.content for source in sources],
                [source.number for source in sources],
                slots,
            )

    def _open(self, admitted: list[Source]) -> None:
        self._reserve(admitted)
        self._work.claim_pages(len(admitted))
        num_rows = self._state.open(admitted, self.model.start_id)
        for source, num in zip(admitted, num_rows, strict=True):
            source.opened = self.stats.steps
            self._live[source.slot] = source
            self._num_rows[source.slot] = num
            self._expansions[source.slot] = 0
        self._live_changed()
        self.stats.refills += 1

    def _live_changed(self) -> None:
        self._slots = np.fromiter(self._live, dtype=np.int32)
        self._slot = to_device(self._slots, torch.int32, self.model.device)
        live = self._live.values()
        self._longest = max((source.max_tokens for source in live), default=0)
        self._per_step = max((source.algorithm.tokens_per_step for source in live), default=0)
        if self._reads_late:
            limits = [source.algorithm for source in live]
            self._widths = np.array([limit.most_rows for limit in limits])
            self._growths = np.array([limit.growth for limit in limits])

    def _reserve(self, sources: Iterable[Source] = ()) -> None:
        """Room for the widest beam and the longest hypothesis that the next step may bring."""
        for source in sources:
            self._longest = max(self._longest, source.max_tokens)
            self._per_step = max(self._per_step, source.algorithm.tokens_per_step)
        width = max((source.algorithm.most_rows for source in sources), default=0)
        # the start token counts as a step, and so does what comes after this one
        self._work.reserve(width, self._most_tokens(2))

    def _most_tokens(self, num_steps: int) -> int:
        """Tokens that a row can have so many steps after those that the oldest source has had."""
        oldest = next(iter(self._live.values()), None)
        steps = 0 if oldest is None else self.stats.steps - oldest.opened
        return min((steps + num_steps) * self._per_step, self._longest)

    def _hear(self, pending: Pending) -> list[Partial]:
        """Read a report; sources that are done leave. The one place that waits for the device.

        Returns the committed prefixes that have grown, if they were asked for.
        """
        with self._clock("report"):
            numbers = pending.copy.numpy()
        self._work.give_back(self._resting)
        self._resting = []
        slots, size = pending.slots, len(numbers) - len(pending.slots) * pending.capacity
        report = Report.parse(numbers[:size], len(slots))
        self._work.hear(report, pending.claimed_pages)
        self._num_rows[slots] = report.num_rows
        self.stats.expansions += int((report.expansions - self._expansions[slots]).sum())
        self._expansions[slots] = report.expansions
        partials = []
        if pending.capacity:
            sources = [self._live.get(int(slot)) for slot in slots]
            prefixes = numbers[size:].reshape(len(slots), -1)
            partials = lengthened(sources, report.reason != RUNNING, prefixes)
        if report.reason.any():
            done = np.flatnonzero(report.reason)
            self._num_rows[slots[done]] = 0
            self._close(slots, report, done)
        return partials

    def _close(self, slots: np.ndarray, report: Report, done: np.ndarray) -> None:
        """Send for what these sources have found, and empty their slots."""
        # one that left after the step before is still named by this report
        done = np.array([i for i in done if slots[i] in self._live], dtype=np.int64)
        if not done.size:
            return
        with self._clock("close"):
            sources = [self._live.pop(int(slot)) for slot in slots[done]]
            report = Report(report.num_free_pages, *(column[done] for column in report[1:]))
            closed, capacity = slots[done].tolist(), int(report.depth.max()) + 1
            found = self._state.finished(
                closed,
                report.num_finished.tolist(),
                capacity,
                wants_log_probs=self.wants_log_probs or self.algorithm.perturbs,
            )
            choices = None
            if self.algorithm.num_groups > 1:
                width = max(source.algorithm.width for source in sources)
                choices = HostCopy(self._state.choices(closed, 1 + width * (capacity - 1)))
            self._leaving.append(Leaving(HostCopy(found), sources, report, capacity, choices))
            self._work.close(closed, int(report.num_pages.sum()))
            if self._reads_late:
                self._resting += closed
            else:
                self._work.give_back(closed)
            for source in sources:
                self._live_tokens -= source.source_length
                self._work.taken_bytes -= source.max_bytes
            self._live_changed()

    def _results(self) -> Iterator[Result]:
        """The results of sources that have left; those with another group to search queue again."""
        while self._leaving:
            leaving = self._leaving.popleft()
            outcomes = leaving.outcomes(self._attend, wants_log_probs=self.wants_log_probs)
            for outcome in outcomes:
                if isinstance(outcome, Source):
                    self._admission.go_on(outcome)
                    continue
                yield self._counted(outcome)

    def _counted(self, result: Result) -> Result:
        self.stats.sources += 1
        self.stats.stop_reasons[result.stop_reason] += 1
        return result
