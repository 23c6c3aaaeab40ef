"""Sources that are done: from what the device has found to results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pybeam.backends.arrays import STOP_REASONS
from pybeam.backends.transfer import HostCopy
from pybeam.engine.groups import going_on
from pybeam.engine.source import Source
from pybeam.request import Hypothesis, Result
from pybeam.state.report import Found, Report


class Leaving(NamedTuple):
    """What sources have found, on its way to the host."""

    copy: HostCopy
    sources: list[Source]
    report: Report  # of these sources
    capacity: int  # of the paths
    choices: HostCopy | None = None  # see `BeamState.choices`

    def outcomes(
        self,
        attend: Callable[[list[Source], list[Result]], list[Result]],
        *,
        wants_log_probs: bool,
    ) -> Iterator[Result | Source]:
        """The result of each source, or the source itself where its next group is to be searched.

        `attend` adds what hangs on attention.
        """
        found = iter(Found.parse(self.copy.numpy(), self.capacity))
        choices = None if self.choices is None else self.choices.numpy()
        lines = zip(*self.report[1:], strict=True)
        results = []
        for source, line in zip(self.sources, lines, strict=True):
            reason, _, depth, num_finished, steps, expansions, _ = map(int, line)
            own = [next(found) for _ in range(num_finished)]
            cost = steps, expansions
            results.append(_result(source, STOP_REASONS[reason], own, depth, cost, wants_log_probs))
        results = attend(self.sources, results)
        for i, (source, result) in enumerate(zip(self.sources, results, strict=True)):
            del result.hypotheses[source.algorithm.n_best :]
            yield result if choices is None else going_on(source, result, choices[i])


def _result(
    source: Source,
    reason: str,
    found: list[Found],
    depth: int,
    cost: tuple[int, int],
    wants_log_probs: bool,
) -> Result:
    """With all hypotheses that were found, best first; `cost` is steps and expansions."""
    error = None
    if reason == "error":
        error = ValueError(
            f"the model returned NaN or +inf logits for request {source.number} at generated token "
            f"{depth}; check its weights, dtype and this source"
        )
        found = []
    elif source.target:
        reason = "target"
    scored = [_hypothesis(source, one, wants_log_probs) for one in found]
    # stable: ties as they finished
    scored.sort(key=lambda hypothesis: -hypothesis.final_score)
    return Result(source.index, source.request.id, scored, reason, *cost, error)


def _hypothesis(source: Source, found: Found, wants_log_probs: bool) -> Hypothesis:
    limits = source.algorithm
    final_score = limits.scoring.final_score(
        found.score, found.length, source.source_length, has_ended=found.eos_id is not None
    )
    score, log_probs = found.score, found.log_probs
    if log_probs is not None and not limits.prefix.is_scored:
        log_probs = log_probs[len(source.prefix) :]
    if limits.perturbs:
        score, log_probs = sum(log_probs), log_probs if wants_log_probs else None
    ended = found.eos_id is not None
    return Hypothesis(found.tokens, score, final_score, ended, log_probs, eos_id=found.eos_id)
