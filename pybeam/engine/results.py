"""Reports on sources and hypotheses of finished sources, on their way to the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from pybeam.backends.arrays import STOP_REASONS
from pybeam.backends.transfer import HostCopy
from pybeam.contracts import PAGE_CELLS
from pybeam.engine.failures import Interrupted, failed
from pybeam.engine.source import Source
from pybeam.models.base import Alignment, Session
from pybeam.request import Hypothesis, Result
from pybeam.state.beam_state import BeamState
from pybeam.state.report import FinishedHypothesis, Report

if TYPE_CHECKING:
    from pybeam.engine.partials import PartialReader


class PendingReport(NamedTuple):
    """A report that is being copied to the host."""

    copy: HostCopy
    slots: tuple[int, ...]  # slots of the sources that were live
    claimed_pages: int  # pages that had been claimed when it was sent for
    reader: PartialReader | None  # what is read of sources that are watched, behind the report
    errors: dict[int, Exception]  # by slot, of sources that failed in this step or must leave


class FinishedBatch(NamedTuple):
    """Sources that left after the same step. Their hypotheses are being copied to the host."""

    sources: list[Source]
    errors: list[Exception | None]  # None for a source that has not failed
    report: Report  # the report on these sources alone
    found: HostCopy
    cut: list[int]  # places of the sources whose best row, cut as it is, follows in `found`
    capacity: int  # tokens per path in `found`
    choices: HostCopy | None  # see `groups.choices`

    @classmethod
    def gather(
        cls,
        state: BeamState,
        sources: list[Source],
        errors: list[Exception | None],
        report: Report,
        *,
        wants_log_probs: bool,
    ) -> FinishedBatch:
        """Request the hypotheses of these sources; `report` is their report."""
        longest = capacity = max(report.depth) + 1
        if state.replay is not None:
            # few sizes are captured
            capacity = 1 << (max(PAGE_CELLS, longest) - 1).bit_length()
        # where processors perturb scores, the score is the sum of the log-probabilities
        needs_log_probs = wants_log_probs or any(one.algorithm.perturbs for one in sources)
        found = state.finished(
            [source.slot for source in sources],
            report.num_finished,
            capacity,
            wants_log_probs=needs_log_probs,
        )
        cut = [i for i, one in enumerate(sources) if _is_cut(one, errors[i], report, i)]
        if cut:
            slots = [sources[i].slot for i in cut]
            rows = state.cut(slots, capacity, wants_log_probs=needs_log_probs)
            found = torch.cat((found[: sum(report.num_finished)], rows))
        choices = None
        if any(source.algorithm.num_groups > 1 for source in sources):
            from pybeam.engine.groups import choices_of

            choices = choices_of(state, sources, longest)
        return cls(sources, errors, report, HostCopy(found), cut, capacity, choices)

    def results(
        self, session: Session, alignment: Alignment | None, *, wants_log_probs: bool
    ) -> Iterator[Result | Source]:
        """Return the result of each source, or the source itself if its next group is to be searched.

        `session` computes attention, which is asked for by `alignment` or by coverage.
        """
        num = sum(self.report.num_finished)
        numbers = self.found.numpy()[: num + len(self.cut)]
        kept = self._kept(FinishedHypothesis.final_scores(numbers))
        found = iter(
            FinishedHypothesis.parse(numbers[[line for own in kept for line in own]], self.capacity)
        )
        self.found.give_back()
        choices = None if self.choices is None else self.choices.numpy()
        results = self._without_hypotheses()
        for i, (source, own) in enumerate(zip(self.sources, kept, strict=True)):
            best = [next(found) for _ in own]
            if results[i].error is None:
                try:
                    results[i].hypotheses.extend(_hypotheses(source, best, wants_log_probs))
                except Exception as error:
                    results[i] = failed(results[i], error)
        if alignment or any(source.algorithm.scoring.coverage for source in self.sources):
            from pybeam.engine.attention import with_attention

            results = with_attention(session, alignment, self.sources, results)
        for i, (source, result) in enumerate(zip(self.sources, results, strict=True)):
            del result.hypotheses[source.algorithm.n_best :]
            if source.has_all_items(result):
                result = dataclasses.replace(result, has_all_items=True)
            if choices is None:
                yield result
            else:
                from pybeam.engine.groups import next_group

                yield next_group(source, result, choices[i])

    def _kept(self, final_scores: Sequence[float]) -> list[list[int]]:
        """The lines in `found` of the hypotheses that each source may return, best first."""
        counts = self.report.num_finished
        cut = dict(zip(self.cut, range(sum(counts), len(final_scores)), strict=True))
        kept, first = [], 0
        for i, (source, num) in enumerate(zip(self.sources, counts, strict=True)):
            own = [cut[i]] if i in cut else list(range(first, first + num))
            first += num
            # stable, so that ties stay in the order of finishing
            own.sort(key=lambda line: -final_scores[line])
            # coverage ranks them anew
            if not source.algorithm.scoring.coverage:
                del own[source.algorithm.n_best :]
            kept.append(own)
        return kept

    def _without_hypotheses(self) -> list[Result]:
        report, results = self.report, []
        for i, source in enumerate(self.sources):
            reason, error = STOP_REASONS[report.reason[i]], self.errors[i]
            cost = report.steps[i], report.expansions[i]
            result = Result(source.index, source.request.id, [], reason, *cost)
            if error is None and reason == "error":
                error = ValueError(
                    f"the model returned NaN or +inf logits for request {source.number} at generated "
                    f"token {report.depth[i]}; check its weights, dtype and this source"
                )
            if error is not None:
                result = failed(result, error)
            elif source.target:
                result = dataclasses.replace(result, stop_reason="target")
            results.append(result)
        return results


def _is_cut(source: Source, error: Exception | None, report: Report, i: int) -> bool:
    """Whether a source that leaves has nothing but its best row to show, and that has a token of its own."""
    if not isinstance(error, Interrupted) or source.target or not source.allows_cuts:
        return False
    return not report.num_finished[i] and report.depth[i] > len(source.prefix)


def _hypotheses(
    source: Source, found: list[FinishedHypothesis], wants_log_probs: bool
) -> list[Hypothesis]:
    algorithm, made = source.algorithm, []
    of_prefix = 0 if algorithm.prefix.is_scored else len(source.prefix)
    for one, items in zip(found, source.items([one.tokens for one in found]), strict=True):
        score, log_probs = one.score, one.log_probs
        if log_probs is not None:
            log_probs = log_probs[of_prefix:]
            if algorithm.perturbs:
                score = sum(log_probs)
        hypothesis = Hypothesis(
            one.tokens,
            score,
            one.final_score,
            one.eos_id is not None,
            log_probs if wants_log_probs else None,
            eos_id=one.eos_id,
            items=items,
        )
        made.append(hypothesis)
    return made
