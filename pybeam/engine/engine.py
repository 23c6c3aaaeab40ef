"""The one loop. It never names an algorithm; an algorithm never calls the model and never loops.

A step is a program for the device: sizes are known before it starts and nothing is read back in it.
The host gets one small report per step. On a CPU the host reads it at once. On a GPU
it reads the report of one step while the device is busy with the next (`reads_late`), so it knows a
little less: how many rows there are is then an upper bound, what does not fit waits for a step, and a
source that is done is noticed one step later. Results are the same.

A step that raises before it commits has changed nothing: the sources that are to blame leave with an
error, and the others go on (`failures.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import NULL_SLOT, RUNNING
from pybeam.backends.transfer import HostCopy, to_device
from pybeam.engine.admission import ENCODE_AHEAD, Admission
from pybeam.engine.arrivals import Arrivals, IterableArrivals
from pybeam.engine.attention import with_attention
from pybeam.engine.failures import StepFailed, blamed, isolate, kept
from pybeam.engine.live_sources import LiveSources
from pybeam.engine.partials import PartialReader
from pybeam.engine.pending import PendingReport
from pybeam.engine.results import FinishedBatch
from pybeam.engine.schedule import Schedule
from pybeam.engine.source import Source
from pybeam.engine.stats import PhaseClock, Stats
from pybeam.engine.workspace import Workspace
from pybeam.models.base import Alignment
from pybeam.request import Partial, Result
from pybeam.state.new_beam import NO_SLOT
from pybeam.state.report import Report
from pybeam.state.step import Step

Answers = Generator[list[Result | Partial]]


@dataclass(frozen=True)
class StreamOptions:
    """Options of one stream: the outputs that it hands out, and when the host reads.

    Args:
        log_probs: whether `Hypothesis.log_probs` is filled.
        partials: whether a `Partial` comes whenever more of a best hypothesis is certain.
        alignment: the attention for `Hypothesis.attention`; None: it stays empty.
        reads_late: whether the host reads the report of a step while the next one runs.
    """

    log_probs: bool = False
    partials: bool = False
    alignment: Alignment | None = None
    reads_late: bool = False


class Engine:
    """Decode one stream of requests. Every call of `Decoder.decode` or `Decoder.stream` makes a new one."""

    def __init__(
        self,
        workspace: Workspace,
        schedule: Schedule,
        stats: Stats,
        wants: StreamOptions | None = None,
    ) -> None:
        self.stats = stats
        self._work, self._schedule = workspace, schedule
        self._wants = StreamOptions() if wants is None else wants
        self._clock = PhaseClock(stats.phase_seconds)
        self._live = LiveSources(workspace.model.device)
        self._pending: deque[PendingReport] = deque()
        self._finished: deque[FinishedBatch] = deque()

    def run(self, requests: Iterable[Any] | Arrivals) -> Answers:
        """Yield results as soon as they are known, in no particular order; see `streaming.Stream`."""
        arrivals = requests if isinstance(requests, Arrivals) else IterableArrivals(requests)
        self._work.expect(self._schedule.most_sources)
        self._arrivals = arrivals
        self._admission = Admission(
            arrivals,
            self._work,
            self._schedule,
            wants_log_probs=self._wants.log_probs,
            wants_partials=self._wants.partials,
        )
        while self._live or not self._admission.is_done:
            yield from self._dismiss()
            if not self._admission.is_done:
                yield from self._admit()
            if self._live:
                self._advance()
            yield from self._read_reports()
            if self._finished and not (self._wants.reads_late and self._live):
                yield from self._results()
        self._pending.clear()
        self._work.end_quarantine()

    def _dismiss(self) -> Answers:
        """Let the requests go that must leave now, wherever they are, and take all back that they hold."""
        leaving = self._arrivals.between_steps(self._live.load(self.stats.steps))
        if not leaving:
            return
        waiting = self._admission.remove(leaving)
        yield from self._give_up(waiting, {i: leaving[s.index] for i, s in enumerate(waiting)})
        errors = {s.slot: leaving[s.index] for s in self._live if s.index in leaving}
        if errors:
            self._read_later(self._work.state.report(self._live.slot), None, errors)
            yield from self._read_reports()
        # the stream may sleep before its next step
        yield from self._results()

    def _read_reports(self) -> Answers:
        """Read the reports that must be read before the next step."""
        while self._must_read():
            if self._finished:
                yield from self._results()
            yield self._read_report()

    def _must_read(self) -> bool:
        """Whether the oldest pending report must be read before the next step."""
        pending = self._pending
        return bool(pending) and (len(pending) > self._wants.reads_late or bool(pending[-1].errors))

    def _advance(self) -> None:
        """Start one step of the sources that move, and request a report on all live ones."""
        live, state = self._live, self._work.state
        errors: dict[int, Exception] = {}
        try:
            report = self._launch()
            self.stats.steps += 1
        except Exception as error:
            errors = self._blame(error)
            report = state.report(live.slot)
        reader = None if errors else PartialReader.at(live, live.max_tokens(self.stats.steps, 1))
        self._read_later(report, reader, errors)

    def _read_later(
        self, report: Tensor, reader: PartialReader | None, errors: dict[int, Exception]
    ) -> None:
        """Request a report on all live sources, and what `reader` reads of those that are watched."""
        with self._clock("report"):
            if reader is not None:
                report = torch.cat((report, reader.read(self._work.state)))
            claimed = self._work.claimed_pages
            pending = PendingReport(HostCopy(report), self._live.slots, claimed, reader, errors)
            self._pending.append(pending)

    def _launch(self) -> Tensor:
        """Start a step, as a graph if there is one. Returns the report on the live sources."""
        work, live = self._work, self._live
        self._reserve()
        work.claim_pages(len(live))
        self.stats.pages = work.tree.num_total_pages
        longest = live.max_tokens(self.stats.steps, 1)
        limit = live.row_limit() if self._wants.reads_late else None
        if work.graphs is None:
            return self._step(live.slot, limit, longest)
        step = partial(self._step, limit=limit, longest=longest)
        slot = live.padded_slot(work.padded_sources(len(live)))
        key = slot.numel(), limit, work.state.options
        captured = work.graphs.get(key, work.buffers(), step, slot)
        if captured is not None:
            with self._clock("replay"):
                return captured()
        report = step(slot)
        # its kernels are compiled now, and the next step of this size is a graph
        work.graphs.get(key, work.buffers(), step, slot)
        return report

    def _step(self, slot: Tensor, limit: int | None, longest: int) -> Tensor:
        """Run one step for these slots [A]. Returns the report on them.

        `limit` rows are sent through the model; None: as many as there are.
        """
        state, live, is_forced = self._work.state, slot, False
        if limit is None and self._schedule.moves_all:
            num_rows = self._live.num_rows
            is_forced = self._live.are_forced(self.stats.steps, state.prefix_reach)
        else:
            with self._clock("plan"):
                slot, rows_of = state.plan(slot, self._schedule.planner(limit))
                num_rows = int(rows_of.sum()) if limit is None else limit
        try:
            step = self._choose(slot, num_rows, longest, is_forced)
        except Exception as error:
            raise StepFailed(slot, is_undone=True) from error
        try:
            with self._clock("commit"):
                moves, report = step.commit(live, wants_moves=self._work.advances)
                if moves is not None:
                    self._work.session.advance(*moves)
                return report
        except Exception as error:
            raise StepFailed(slot, is_undone=False) from error

    def _choose(self, slot: Tensor, num_rows: int, longest: int, is_forced: bool = False) -> Step:
        """Select the survivors of the beams in these slots [A]. A second call does the same."""
        state, session = self._work.state, self._work.session
        with self._clock("plan"):
            step = state.begin(slot, num_rows, longest, is_forced)
        with self._clock("model"):
            logits = session.step(step.rows)
        with self._clock("select"):
            step.choose(logits)
        return step

    def _blame(self, error: Exception) -> dict[int, Exception]:
        """The sources that leave because a step raised this: their errors by slot."""
        every = self._live.slots
        if not isinstance(error, StepFailed):
            return dict.fromkeys(every, kept(error))
        cause = error.__cause__
        assert isinstance(cause, Exception)
        moving = [slot for slot in error.slot.tolist() if slot != NULL_SLOT] or list(every)
        if not error.is_undone:
            return dict.fromkeys(moving, kept(cause))
        return blamed(self._try_alone, moving, cause)

    def _try_alone(self, slots: list[int]) -> None:
        """Compute a step of these slots and drop it, to see whether it raises."""
        slot = to_device(slots, torch.int32, self._work.model.device)
        num_rows = int(self._work.state.beams.num_rows[slot.long()].sum())
        self._choose(slot, num_rows, self._live.max_tokens(self.stats.steps, 1))

    def _admit(self) -> Answers:
        """Refill: take the sources from the queue that the schedule admits."""
        live, admission = self._live, self._admission
        if self._work.is_too_large and not (live or admission.has_encoded):
            self._pending.clear()
            self._work.give_back()
        load, taken_bytes = live.load(self.stats.steps), live.max_bytes
        if not self._schedule.refills(load):
            return
        admitted: list[Source] = []
        while True:
            source = admission.next()
            if self._work.is_too_large and not admission.has_encoded:
                break
            if source is None:
                if self._arrivals.keeps_order and not self._schedule.may_have_room(load):
                    break
                for result in admission.read(may_wait=not load.sources):
                    yield [self.stats.count(result)]
                source = admission.next()
            if source is None:
                break
            max_rows = source.algorithm.max_rows
            if not self._schedule.has_room(load, source.source_length, max_rows):
                break
            if load.sources and source.max_bytes > self._work.free_bytes(taken_bytes):
                break
            admitted.append(admission.take())
            load = load.with_one_more(source.source_length, source.algorithm.first_rows)
            taken_bytes += source.max_bytes
        if admitted:
            yield from self._encode(admitted, self._work.free_bytes(taken_bytes))
            yield from self._open([source for source in admitted if source.slot != NO_SLOT])

    def _encode(self, admitted: list[Source], free_bytes: float) -> Answers:
        """Encode these sources, and some that come next, so that encoder batches are not tiny."""
        missing = [source for source in admitted if source.slot == NO_SLOT]
        if not missing:
            return
        ahead = self._admission.take_ahead(ENCODE_AHEAD - len(missing), free_bytes)
        work, sources = self._work, missing + ahead
        for source, slot in zip(sources, work.take_slots(len(sources)), strict=True):
            source.slot = slot
        self._live.reserve(work.num_slots)

        def encode(some: list[Source]) -> None:
            slots = [source.slot for source in some]
            self._reserve(some)
            contents = [source.content for source in some]
            try:
                work.session.encode(contents, [source.number for source in some], slots)
            except Exception:
                # a half encoded source would keep its cells when it is tried again
                work.session.release(slots)
                raise

        indices = [source.index for source in sources]
        self._arrivals.enter("encode", indices)
        with self._clock("encode"):
            errors = isolate(encode, sources)
        self._arrivals.enter("wait", indices)
        yield from self._give_up(sources, errors)
        self._admission.put_encoded(source for source in ahead if source.slot != NO_SLOT)

    def _open(self, sources: list[Source]) -> Answers:
        """Open a beam for each of these sources."""
        opened: list[Source] = []
        num_rows: list[int] = []

        def open_beams(some: list[Source]) -> None:
            self._work.choose_reads(some)
            self._reserve(some)
            with self._clock("encode"):
                num_rows.extend(self._work.open(some))
            opened.extend(some)

        yield from self._give_up(sources, isolate(open_beams, sources))
        if opened:
            self._live.add(opened, num_rows, self.stats.steps)
            self._arrivals.enter("decode", [source.index for source in opened])
            self.stats.refills += 1

    def _give_up(self, sources: list[Source], errors: dict[int, Exception]) -> Answers:
        """Make results of sources that leave before they begin; `errors` are by place in `sources`."""
        for i, error in errors.items():
            source = sources[i]
            if source.slot != NO_SLOT:
                self._work.free_slot(source.slot)
                source.slot = NO_SLOT
            yield [self.stats.count(source.failed(error))]

    def _reserve(self, newcomers: Sequence[Source] = ()) -> None:
        """Make room for the widest beam and the longest hypothesis of the next step."""
        # the start token counts as a step, and so does the step after this one
        length = self._live.max_tokens(self.stats.steps, 2, newcomers)
        self._work.reserve(length, self._live, newcomers)

    def _read_report(self) -> list[Result | Partial]:
        """Read the oldest report, and close sources that are done. Only this method waits for the device.

        Returns the stable prefixes that have grown, if they were asked for.
        """
        pending = self._pending.popleft()
        with self._clock("report"):
            numbers = pending.copy.numpy()
        self._work.end_quarantine()
        slots, reader = pending.slots, pending.reader
        # a captured step reports on padding, too
        lines = numbers[: Report.size(len(slots))].tolist()
        self.stats.free_pages = lines[0]
        self._work.read_report(lines[0], pending.claimed_pages)
        num_new, done = self._live.read_report(slots, lines)
        self.stats.expansions += num_new
        if pending.errors:
            failed = (i for i, slot in enumerate(slots) if slot in pending.errors)
            done = sorted({*done, *(i for i in failed if self._live.get(slots[i]))})
        if not done and reader is None:
            return []
        report = Report.parse(numbers[: len(lines)], len(slots))
        partials: list[Result | Partial] = []
        if reader is not None:
            going = {slots[i] for i in np.flatnonzero(report.reason == RUNNING)}
            partials += reader.partials(
                numbers, lambda s: s.slot in going and self._live.get(s.slot) is s
            )
        if done:
            self._close([slots[i] for i in done], report.of(done), pending.errors)
        return partials

    def _close(self, slots: list[int], report: Report, errors: dict[int, Exception]) -> None:
        """Request the hypotheses of the sources in these slots, and empty the slots."""
        work = self._work
        with self._clock("close"):
            sources = self._live.remove(slots)
            # a source that was done before the step failed already has its result
            was_running = report.reason == RUNNING
            own = [errors.get(p) if was_running[i] else None for i, p in enumerate(slots)]
            batch = FinishedBatch.gather(
                work.state, sources, own, report, wants_log_probs=self._wants.log_probs
            )
            self._finished.append(batch)
            num_pages = int(report.num_pages.sum())
            work.close(slots, num_pages)
            self.stats.free_pages += num_pages
            if self._wants.reads_late:
                work.quarantine(slots)
            else:
                work.release_slots(slots)

    def _results(self) -> Answers:
        """Yield the results of sources that have left. Sources with another group to search queue again."""
        attend = partial(with_attention, self._work.session, self._wants.alignment)
        while self._finished:
            batch = self._finished.popleft()
            results: list[Result | Partial] = []
            for outcome in batch.results(attend, wants_log_probs=self._wants.log_probs):
                if isinstance(outcome, Source):
                    self._admission.requeue(outcome)
                    self._arrivals.enter("wait", [outcome.index])
                else:
                    results.append(self.stats.count(outcome))
            yield results
