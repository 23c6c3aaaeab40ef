"""The one loop. It never names an algorithm; an algorithm never calls the model and never loops.

A step is a program for the device: sizes are known before it starts and nothing is read back in it.
The host gets one small report per step, or per few steps on a GPU (`reports_every`). On a CPU the host
reads it at once. On a GPU it reads one while the device is busy with the next steps (`reads_late`), so it
knows a little less: how many rows there are is then an upper bound, what does not fit waits for a step, and
a source that is done is noticed some steps later. Results are the same.

On a CPU one call may do many steps (`BeamProgram.run`). Each is the same step, called from C++. The call
ends when the loop has something to decide: a source is done, memory is missing, a request must leave, or
one has come for which there may be room.

A step that raises before it commits has changed nothing: the sources that are to blame leave with an
error, and the others go on (`failures.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler

from pybeam.backends.arrays import RUNNING
from pybeam.backends.transfer import HostCopy, to_device
from pybeam.engine.admission import Admission
from pybeam.engine.arrivals import Arrivals, IterableArrivals
from pybeam.engine.failures import StepFailed
from pybeam.engine.intake import Answers, Intake
from pybeam.engine.live_sources import REASON, LiveSources
from pybeam.engine.results import FinishedBatch, PendingReport
from pybeam.engine.schedule import Schedule
from pybeam.engine.source import Source
from pybeam.engine.stats import PhaseClock, Stats
from pybeam.engine.workspace import Workspace
from pybeam.models.base import Alignment
from pybeam.request import Partial, Result
from pybeam.state.report import REPORTED, Report
from pybeam.state.step import Step, StepPlan


@dataclass(frozen=True)
class StreamOptions:
    """Options of one stream: the outputs that it hands out, and when the host reads.

    Args:
        log_probs: whether `Hypothesis.log_probs` is filled.
        partials: whether a `Partial` comes whenever more of a best hypothesis is certain.
        alignment: the attention for `Hypothesis.attention`; None: it stays empty.
        reads_late: whether the host reads a report while the next steps run.
        reports_every: steps between two reports, while at least so many sources are live and none is watched.
    """

    log_probs: bool = False
    partials: bool = False
    alignment: Alignment | None = None
    reads_late: bool = False
    reports_every: tuple[int, int] = (1, 0)


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
        self._moves_all = schedule.moves_all
        self._has_own_plan = type(schedule).plan is not Schedule.plan
        self._graphs = None if self._has_own_plan else workspace.graphs  # no replay runs Python
        # what ends a call of many steps, by whether there is room for newcomers; None: one step at a time
        self._calls: tuple[Tensor, ...] | None = None
        self._pending: deque[PendingReport] = deque()
        self._finished: deque[FinishedBatch] = deque()

    def run(self, requests: Iterable[Any] | Arrivals) -> Answers:
        """Yield results as soon as they are known, in no particular order; see `streaming.Stream`."""
        arrivals = requests if isinstance(requests, Arrivals) else IterableArrivals(requests)
        self._begin(arrivals)
        is_asked = type(arrivals).between_steps is not Arrivals.between_steps
        while self._live.slots or self._waits:
            if is_asked:
                yield from self._dismiss()
            if self._waits:
                yield from self._admit()
            if self._live.slots:
                self._advance()
            yield from self._read_reports()
            if self._finished and not (self._wants.reads_late and self._live.slots):
                yield from self._results()
        self._pending.clear()
        self._work.slots.end_quarantine()

    def _begin(self, arrivals: Arrivals) -> None:
        """Take the requests of a stream."""
        self._work.room.steps_ahead = self._wants.reports_every[0]
        self._work.expect(self._schedule.most_sources)
        self._arrivals, self._waits = arrivals, True
        goes_on = self._schedule.admits_by_count and not self._wants.reads_late
        news, leave = arrivals.has_news, arrivals.must_leave
        if news is not None and goes_on:
            flags = news if leave is None else leave, news
            self._calls = tuple(map(torch.from_numpy, flags))
        self._admission = Admission(
            arrivals,
            self._work,
            self._schedule,
            wants_log_probs=self._wants.log_probs,
            wants_partials=self._wants.partials,
        )
        given = self._admission, arrivals, self._work, self._schedule, self._live
        self._intake = Intake(*given, self.stats, self._clock)

    def _admit(self) -> Answers:
        """Take new sources, in fresh memory if there has been a peak."""
        work, live = self._work, self._live
        if work.is_too_large and not (live.slots or self._admission.has_encoded):
            self._pending.clear()
            work.give_back()
        yield from self._intake.admit()
        self._waits = not self._admission.is_done

    def _dismiss(self) -> Answers:
        """Let the requests go that must leave now, wherever they are, and take all back that they hold."""
        leaving = self._arrivals.between_steps(self._live.load(self.stats.steps))
        if not leaving:
            return
        waiting = self._admission.remove(leaving)
        self._waits = not self._admission.is_done
        yield from self._intake.give_up(
            waiting, {i: leaving[s.index] for i, s in enumerate(waiting)}
        )
        errors = {s.slot: leaving[s.index] for s in self._live if s.index in leaving}
        if errors:
            self._read_later(self._work.state.report(self._live.slot), errors)
            yield from self._read_reports()
        # the stream may sleep before its next step
        yield from self._results()

    def _read_reports(self) -> Answers:
        """Read the reports that must be read before the next step."""
        pending = self._pending
        while pending and (len(pending) > self._wants.reads_late or pending[-1].errors):
            if self._finished:
                yield from self._results()
            partials = self._read_report()
            if partials:
                yield partials

    def _advance(self) -> None:
        """Start a step of the sources that move, or several, and request a report on all live ones."""
        errors: dict[int, Exception] = {}
        try:
            run = self._steps if self._graphs is None else self._captured
            every, least = self._wants.reports_every
            every = 1 if len(self._live.slots) < least or self._live.num_watched else every
            # the start token counts as a step, and so does the step after these
            length = self._live.max_tokens(self.stats.steps, every + 1)
            self._work.room.for_steps(every, len(self._live.slots), length, self._live)
            self.stats.pages = self._work.tree.num_total_pages
            for _ in range(every):
                num, report = run(self._plan())
                self.stats.steps += num
            if num > 1:
                # of which room was asked for the first one alone
                self._work.room.needed.note(length=self._live.max_tokens(self.stats.steps, 1))
        except Exception as error:
            # few steps fail
            from pybeam.engine.blame import blame

            self._clock(None)
            errors = blame(error, self._live.slots, self._try_alone)
            report = self._work.state.report(self._live.slot)
        self._read_later(report, errors)

    def _plan(self) -> StepPlan:
        """Say which step comes next."""
        live, steps = self._live, self.stats.steps
        limit = live.row_limit(steps, not self._waits) if self._wants.reads_late else None
        if limit is None and self._moves_all:
            return live.plan(steps, self._work.state.prefix_reach)
        pads = self._graphs is not None
        slot = live.padded_slot(self._work.padded_sources(len(live.slots))) if pads else live.slot
        return StepPlan(slot, limit, live.max_tokens(steps, 1))

    def _captured(self, plan: StepPlan) -> tuple[int, Tensor]:
        """Do what `_steps` does, by a graph if there is one. Its kernels are compiled before that."""
        work, graphs = self._work, self._graphs
        assert graphs is not None
        key = plan.slot.numel(), plan.num_rows, work.state.options

        def step(slot: Tensor) -> Tensor:
            return self._steps(plan._replace(slot=slot))[1]

        self._clock("replay")
        return 1, graphs.run(key, work.buffers(), step, plan.slot, recurs=True)

    def _steps(self, plan: StepPlan) -> tuple[int, Tensor]:
        """Run a step, or several if nobody has a say between them. Returns how many, and the report."""
        live, work = plan.slot, self._work
        if self._wants.reads_late or not self._moves_all:
            plan = self._chosen(plan)
        is_undone, slot = True, plan.slot
        try:
            step = self._begun(plan)
            slot = step.rows.slot
            most = self._most_steps()
            is_plain = most > 1 and step.is_plain(self._live.slots)
            call = work.session.call(step.rows) if is_plain else None
            if call is not None:
                assert self._calls is not None
                ends = self._calls[0], self._calls[self._intake.has_room]
                patience = self._arrivals.patience * self._live.num_rows
                self._clock(None)
                is_undone = False
                num, report, seconds = step.go_on(call, live, most, *ends, patience)
                if num:
                    self._clock.add(("plan", "model", "commit"), seconds)
                    return num, report
                is_undone = True
            self._choose(step)
            is_undone = False
            self._clock("commit")
            report = step.commit(live)
            if work.advances:
                work.session.advance(*step.moves())
            return 1, report
        except Exception as error:
            raise StepFailed(slot, is_undone=is_undone) from error

    def _most_steps(self) -> int:
        """Return how many steps may go by before the next question of this engine."""
        live, is_watched = self._live, self._live.num_watched or profiler._is_profiler_enabled
        if self._calls is None or is_watched or self._work.advances:
            return 1
        if self._admission.next() is not None and self._intake.has_room:
            # an admitted one has failed, and left its place
            return 1
        return live.steps_within(self.stats.steps, self._work.room.length)

    def _chosen(self, plan: StepPlan) -> StepPlan:
        """Let the schedule choose who moves."""
        self._clock("plan")
        return self._work.state.plan(plan, self._schedule.planner(plan.num_rows))

    def _begun(self, plan: StepPlan) -> Step:
        self._clock("plan")
        return self._work.state.begin(plan)

    def _choose(self, step: Step) -> None:
        """Select the survivors of the beams that move. A second call does the same."""
        self._clock("model")
        session, rows = self._work.session, step.rows
        given = step.choice if session.chooses else None
        chosen = None if given is None else session.choose(rows, *given)
        found = chosen or session.step(rows)
        self._clock("select")
        step.choose(found)

    def _read_later(self, report: Tensor, errors: dict[int, Exception]) -> None:
        """Request a report on all live sources, and what is read of those that are watched."""
        self._clock("report")
        live, reader = self._live, None
        if live.num_watched and not errors:
            from pybeam.engine.partials import PartialReader

            # the step that it is read behind has been counted
            reader = PartialReader.at(live, live.max_tokens(self.stats.steps, 1))
            report = torch.cat((report, reader.read(self._work.state)))
        claimed = self._work.room.claimed_pages
        self._pending.append(PendingReport(HostCopy(report), live.slots, claimed, reader, errors))
        self._clock(None)

    def _try_alone(self, slots: list[int]) -> None:
        """Compute a step of these slots and drop it, to see whether it raises."""
        slot = to_device(slots, torch.int32, self._work.model.device)
        num_rows = int(self._work.state.beams.num_rows[slot.long()].sum())
        longest = self._live.max_tokens(self.stats.steps, 1)
        self._choose(self._begun(StepPlan(slot, num_rows, longest)))

    def _read_report(self) -> list[Result | Partial]:
        """Read the oldest report, and close sources that are done. Only this method waits for the device.

        Returns the stable prefixes that have grown, if they were asked for.
        """
        pending = self._pending.popleft()
        self._clock("report")
        numbers = pending.copy.numpy()
        self._clock(None)
        if self._work.slots.quarantined:
            self._work.slots.end_quarantine()
        slots, reader = pending.slots, pending.reader
        # a captured step reports on padding, too
        lines = numbers[: 1 + REPORTED * len(slots)].tolist()
        self.stats.free_pages = lines[0]
        self._work.room.read_report(lines[0], pending.claimed_pages)
        num_new, done = self._live.read_report(slots, lines)
        self.stats.expansions += num_new
        if self._has_own_plan and not (num_new or pending.errors):
            from pybeam.engine.own_plans import starved

            pending = pending._replace(errors=starved(self._schedule, slots, lines))
        if pending.errors:
            failed = (i for i, slot in enumerate(slots) if slot in pending.errors)
            done = sorted({*done, *(i for i in failed if self._live.get(slots[i]))})
        partials: list[Result | Partial] = []
        if reader is not None:
            reasons, live = dict(zip(slots, lines[REASON], strict=True)), self._live
            partials += reader.partials(
                numbers, lambda s: reasons.get(s.slot) == RUNNING and live.get(s.slot) is s
            )
        pending.copy.give_back()
        if done:
            self._close([slots[i] for i in done], Report.of(lines, done), pending.errors)
        return partials

    def _close(self, slots: list[int], report: Report, errors: dict[int, Exception]) -> None:
        """Request the hypotheses of the sources in these slots, and empty the slots."""
        self._clock("close")
        work = self._work
        sources = self._live.remove(slots)
        # a source that was done before the step failed already has its result
        pairs = zip(slots, report.reason, strict=True)
        own = [errors.get(slot) if reason == RUNNING else None for slot, reason in pairs]
        batch = FinishedBatch.gather(
            work.state, sources, own, report, wants_log_probs=self._wants.log_probs
        )
        self._finished.append(batch)
        num_pages = sum(report.num_pages)
        work.close(slots, num_pages)
        self.stats.free_pages += num_pages
        if self._wants.reads_late:
            work.slots.quarantine(slots)
        else:
            work.slots.release(slots)
        self._clock(None)

    def _results(self) -> Answers:
        """Yield the results of sources that have left. Sources with another group to search queue again."""
        session, wants = self._work.session, self._wants
        while self._finished:
            batch = self._finished.popleft()
            results: list[Result | Partial] = []
            outcomes = batch.results(session, wants.alignment, wants_log_probs=wants.log_probs)
            for outcome in outcomes:
                if isinstance(outcome, Source):
                    self._admission.requeue(outcome)
                    self._waits = True
                    self._arrivals.enter("wait", [outcome.index])
                else:
                    results.append(self.stats.count(outcome))
            yield results
