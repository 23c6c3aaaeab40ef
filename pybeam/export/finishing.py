"""How a hypothesis and a search end, as operators: `Finishing`, `Scoring` and `Stop`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pybeam.contracts import Certificate, Finishing, Top
from pybeam.export.builder import DOUBLE, FLOAT, INT, Builder, Value
from pybeam.export.hypotheses import INF, Candidates, Hypotheses, Split, number_of
from pybeam.scoring import Scoring
from pybeam.search.algorithms import Algorithm
from pybeam.stopping import Stop


@dataclass(frozen=True)
class FinishingRule:
    """The fate of a candidate that ends in EOS; `pybeam.contracts.Finishing` states the rules.

    Attributes:
        finishing: the rule.
        regrows: whether a place that a candidate left is empty for one step alone.
        num_eos: tokens that end a hypothesis.
    """

    finishing: Finishing
    regrows: bool
    num_eos: int

    @property
    def is_held(self) -> bool:
        return self.finishing == Finishing.HELD

    @property
    def refills(self) -> bool:
        return self.finishing == Finishing.REFILL

    def num_ranked(self, op: Builder, width: Value) -> Value:
        """How many of the best candidates of a beam the rule looks at, [1]."""
        return op.Mul(width, 1 + self.num_eos) if self.refills else width

    def places(self, op: Builder, width: Value, found: Value) -> Value:
        """The places of the next beam [B, 1], after `found` [B, 1] have finished."""
        return width if self.refills or self.regrows else op.Max(op.Sub(width, found), 0)

    def split(self, op: Builder, ranked: Candidates, places: Value) -> Split:
        """Divide the candidates of a step."""
        has_ended = ranked.has_ended
        is_one = op.Greater(ranked.score, -INF)
        is_early = op.And(is_one, op.Less(op.range(op.size(is_one, 1)), places))
        if self.is_held:
            leads = op.Equal(number_of(op, op.Not(has_ended)), 0)
            return Split(op.And(is_early, leads), op.And(is_early, op.Not(leads)))
        if not self.refills:
            return Split(op.And(is_early, has_ended), op.And(is_early, op.Not(has_ended)))
        goes_on = op.And(is_one, op.Not(has_ended))
        has_place = op.LessOrEqual(number_of(op, goes_on), places)
        return Split(op.And(is_early, has_ended), op.And(goes_on, has_place))


@dataclass(frozen=True)
class FinalScores:
    """``score / ((offset + n) / scale)**alpha + reward * min(cap, n)`` in float64, rounded once.

    Attributes:
        scoring: the numbers that are fixed.
        alpha: float64.
        offset: [B, 1] float64, with the tokens of a prefix that counts.
        cap: [B, 1] float64, tokens that are rewarded at most; None: all are.
    """

    scoring: Scoring
    alpha: Value
    offset: Value
    cap: Value | None

    def of(self, op: Builder, hypotheses: Hypotheses) -> Value:
        """The final scores [B, N] float32 of hypotheses that end as they are; -inf where there are none."""
        length = hypotheses.length
        cut = round(self.scoring.cut_length_offset)
        if cut:
            length = op.Add(length, op.Where(hypotheses.has_ended, 0, cut))
        final = self.at(op, hypotheses.score, [length])
        return op.Where(hypotheses.exists(op), final, -INF)

    def at(self, op: Builder, score: Value, lengths: Sequence[Value]) -> Value:
        """The most [B, N] float32 that a score can become at these lengths, each [B, N] or [B, 1]."""
        score = op.Cast(score, to=DOUBLE)
        normed, rewards = [], []
        for length in lengths:
            # there is a length of 0 only where there is no hypothesis
            n = op.Cast(op.Max(length, 1), to=DOUBLE)
            size = op.Div(op.Add(self.offset, n), op.double(self.scoring.scale))
            normed.append(op.Div(score, op.Pow(size, self.alpha)))
            rewards.append(n if self.cap is None else op.Min(self.cap, n))
        final = op.Max(*normed)
        if self.scoring.reward:
            reward = op.Cast(self.scoring.reward, to=DOUBLE)
            final = op.Add(final, op.Max(*(op.Mul(reward, one) for one in rewards)))
        return op.Cast(final, to=FLOAT)


class Progress(NamedTuple):
    """The results of a step, for the rule that may end the search."""

    depth: Value  # [B, 1] generated tokens
    found: Value  # [B, 1] hypotheses that have finished
    split: Split  # of the candidates
    finals: (
        Value | None
    )  # [B, N] of all that has finished, -inf for others; only certificates need them
    live: Hypotheses  # the next beam
    is_alive: Value  # [B, K] bool, which of them are rows
    was_topped: Value  # [B, 1] bool, whether the best candidate of an earlier step had ended


class Ending(NamedTuple):
    """The decision of the rule, [B, 1] bool each."""

    is_done: Value
    keeps_rows: Value  # what is left in the beam finishes as it is
    is_topped: Value


@dataclass(frozen=True)
class StopRule:
    """When a search is over.

    Attributes:
        stop: which conditions there are.
        stop_at: [1] hypotheses that end it; None: their number does not matter.
        certified: [1] hypotheses that other conditions compare with.
        limit: [B, 1] generated tokens at which rows are cut.
        scores: the final scores.
    """

    stop: Stop
    stop_at: Value | None
    certified: Value
    limit: Value
    scores: FinalScores

    def ending(self, op: Builder, now: Progress) -> Ending:
        """Decide which sources are done."""
        is_cut = op.GreaterOrEqual(now.depth, self.limit)
        alive = op.ReduceMax(op.Cast(now.is_alive, to=INT), [1])  # [B, 1]
        is_over = op.Or(is_cut, op.Equal(alive, 0))
        is_topped = now.was_topped
        early = []
        if self.stop_at is not None:
            early.append(op.GreaterOrEqual(now.found, self.stop_at))
        if self.stop.top:
            is_topped = self._topped(op, now)
            early.append(op.And(is_topped, op.GreaterOrEqual(now.found, self.certified)))
        if self.stop.certificate:
            early.append(self._certified(op, now))
        is_done = keeps_rows = is_over
        for ends in early:
            is_done, keeps_rows = op.Or(is_done, ends), op.And(keeps_rows, op.Not(ends))
        if self.stop.keeps_best:
            # all that is left may be among the best
            keeps_rows = op.Or(keeps_rows, is_cut)
        return Ending(is_done, keeps_rows, is_topped)

    def _topped(self, op: Builder, now: Progress) -> Value:
        """Return [B, 1] bool, whether the best candidate of this step has ended."""
        rank = op.range(op.size(now.split.finishes, 1))
        size = op.size(now.split.finishes, 1)
        ended, other = (op.ReduceMin(op.Where(one, rank, size), [1]) for one in now.split)
        is_topped = op.Less(ended, other)
        return op.Or(is_topped, now.was_topped) if self.stop.top == Top.EVER else is_topped

    def _certified(self, op: Builder, now: Progress) -> Value:
        """Return [B, 1] bool, whether nothing in the beam can beat the finished hypotheses."""
        assert now.finals is not None
        best = op.TopK(now.finals, self.certified, axis=1, outputs=2)[0]
        worst = op.Gather(best, [-1], axis=1)  # [B, 1]
        cut = round(self.scores.scoring.cut_length_offset)
        lengths = [now.depth]
        if self.stop.certificate == Certificate.BOUND:
            most = op.Add(self.limit, cut)
            lengths = [op.Min(op.Add(now.depth, 1), most), most]
        score = op.Where(now.is_alive, now.live.score, -INF)
        bound = self.scores.at(op, op.ReduceMax(score, [1]), lengths)
        is_held = op.And(now.live.exists(op), now.live.has_ended)
        held = op.Where(is_held, self.scores.of(op, now.live), -INF)
        bound = op.Max(bound, op.ReduceMax(held, [1]))
        return op.And(op.Greater(worst, -INF), op.GreaterOrEqual(worst, bound))


def stop_at(
    op: Builder, algorithm: Algorithm, width: Value, n_best: Value, alpha: Value
) -> Value | None:
    """The number [1] of finished hypotheses that ends the search; see `Algorithm.stop_at`."""
    patience = algorithm.stop.patience
    if patience is None:
        return None
    if patience == 1:
        num = width
    else:
        most = op.Mul(op.Cast(width, to=DOUBLE), op.double(float(patience)))
        num = op.Cast(op.Floor(op.Add(most, op.double(0.5))), to=INT)
    pops_in_order = algorithm.finishing == Finishing.HELD and patience == 1
    if pops_in_order and algorithm.scoring.reward == 0:
        is_raw = op.Equal(alpha, op.double(0.0))
        num = op.Where(is_raw, n_best, num)
    return num
