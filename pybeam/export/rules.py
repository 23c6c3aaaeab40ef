"""`Rules`: an algorithm as values of a graph, and which algorithms can be one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pybeam.arguments import ArgumentError
from pybeam.contracts import Finishing
from pybeam.export.builder import DOUBLE, FLOAT, INT, Builder, Value
from pybeam.export.hypotheses import INF, Hypotheses
from pybeam.export.processors import Chain
from pybeam.limits import SourceLimit
from pybeam.models.transformer.model import Transformer
from pybeam.processors.base import perturbs
from pybeam.search.algorithms import DEFAULT_MAX_LENGTH, Algorithm

# what no graph has, and how it is called
MISSING: tuple[tuple[str, Callable[[Algorithm], bool]], ...] = (
    ("widths by step", lambda one: not isinstance(one.width, int)),
    ("groups (pybeam.diverse)", lambda one: one.num_groups != 1),
    ("tokens guessed ahead (pybeam.jacobi and its kin)", lambda one: one.draft is not None),
    ("samples (pybeam.stochastic_beam)", lambda one: any(map(perturbs, one.processors))),
    ("coverage, which needs attention", lambda one: one.scoring.coverage != 0),
)


def check_algorithm(algorithm: object) -> None:
    """Raise TypeError or ValueError unless this is an algorithm that a graph can express."""
    if not isinstance(algorithm, Algorithm):
        raise TypeError(
            "`algorithm` must come from a function such as pybeam.fixed_beam or one of pybeam.compat, but is "
            f"{algorithm!r}"
        )
    for name, is_there in MISSING:
        if is_there(algorithm):
            raise ArgumentError(
                "algorithm",
                f"must be one that a graph can express, but has {name}; a graph takes greedy, fixed_beam, "
                "variable_beam, shrinking_beam, optimal_beam, huang_beam and the recipes of pybeam.compat; "
                "for others, let pybeam search with encoder.onnx and decoder.onnx",
            )


def facts_of(algorithm: Algorithm, model: Transformer) -> dict[str, str]:
    """The algorithm's own values of inputs that must be given, as metadata of the graph."""
    most, room = algorithm.max_length, model.max_positions
    assert room is not None, "positions of its own have an end"
    if most is None or isinstance(most, SourceLimit):
        most = DEFAULT_MAX_LENGTH if most is None else room
    values = {
        "width": algorithm.last_width,
        "max_length": min(most, room),
        "length_penalty": float(algorithm.scoring.alpha),
    }
    return {name: str(number) for name, number in values.items()}


class Sizes(NamedTuple):
    """The inputs that a graph must be given, and sizes that follow from the source."""

    batch: Value  # [1]
    source_length: Value  # [B], |x|
    width: Value  # [1]
    max_length: Value  # []
    length_penalty: Value  # []
    prefix: Value | None  # [B, P] or [1, P], padded with -1 on the right

    def column(self, op: Builder, number: Value | int) -> Value:
        """Return [B, 1], a number for every source."""
        return op.Expand(number, op.sizes(self.batch, 1))

    def source_lengths(self, op: Builder) -> Value:
        """Return [B, 1] float64."""
        return op.Cast(op.Unsqueeze(self.source_length, [1]), to=DOUBLE)


class Rules:
    """An algorithm as values of a graph, which the body of its loop reads.

    Args:
        op: records what comes before the loop, and gets the inputs of the algorithm.
        model: is searched.
        algorithm: a checked one.
        sizes: of the sources.
        returns_all: whether n_best is the width, and no input.

    Attributes:
        algorithm: what is fixed.
        eos_ids: the tokens that end a hypothesis.
        batch, width, n_best: [1].
        prefix: [B, P + 1], padded with -1; None: there is none.
        prefix_length: [B, 1].
        min_length: [B, 1] tokens behind the prefix before EOS; None: any number.
        limit: [B, 1] generated tokens at which rows are cut.
        stop_at: [1] hypotheses that end the search; None: their number does not matter.
        certified: [1] hypotheses that other conditions of the end compare with.
        max_candidates, margin, local_margin: [], see `Pruning`; None: there is no such rule.
        chain: the processors.
    """

    def __init__(
        self,
        op: Builder,
        model: Transformer,
        algorithm: Algorithm,
        sizes: Sizes,
        *,
        returns_all: bool,
    ) -> None:
        self.algorithm, self.eos_ids = algorithm, model.eos_ids
        self.batch, self.width, self.n_best = sizes.batch, sizes.width, sizes.width
        if not returns_all:
            num = op.Reshape(op.number("n_best", algorithm.n_best), [1])
            self.n_best = op.Min(num, self.width)
        self.prefix, self.prefix_length = _prefix(op, sizes)
        included = self.prefix_length if algorithm.prefix.in_limits else 0
        self.min_length = None
        if algorithm.min_length:
            least = op.Sub(op.number("min_length", algorithm.min_length), included)
            self.min_length = op.Max(sizes.column(op, least), 0)
        self._alpha = op.Cast(sizes.length_penalty, to=DOUBLE)
        self._offset, self._cap = self._counted(op, sizes)
        self.stop_at = self._stop_at(op)
        self.certified = self.width if algorithm.stop.needs_full_beam else self.n_best
        self.limit = self._limit(op, model, sizes, included)
        self.max_candidates, self.margin, self.local_margin = self._margins(op)
        self.chain = Chain(op, model, algorithm.processors)

    @property
    def is_held(self) -> bool:
        return self.algorithm.finishing == Finishing.HELD

    @property
    def refills(self) -> bool:
        """Whether the next candidate takes the place of one that finishes in the same step."""
        return self.algorithm.finishing == Finishing.REFILL

    @property
    def num_kept(self) -> int:
        """For each place of the beam, the hypotheses that may have finished and are kept."""
        # in the last step a whole beam may finish beside those that have
        return 2 if self.algorithm.refills and not self.algorithm.stop.keeps_best else 1

    def num_steps(self, op: Builder) -> Value:
        """Return the number [] of steps at most."""
        return op.ReduceMax(op.Add(self.limit, self.prefix_length), keepdims=0)

    def final_scores(self, op: Builder, hypotheses: Hypotheses) -> Value:
        """The final scores [B, N] float32 of hypotheses that end as they are; -inf where there are none."""
        length = hypotheses.length
        cut = round(self.algorithm.scoring.cut_length_offset)
        if cut:
            length = op.Add(length, op.Where(hypotheses.has_ended, 0, cut))
        final = self.final_score(op, hypotheses.score, [length])
        return op.Where(hypotheses.exists(op), final, -INF)

    def final_score(self, op: Builder, score: Value, lengths: Sequence[Value]) -> Value:
        """The most [B, N] float32 that a score can become at these lengths, each [B, N] or [B, 1].

        That is ``score / ((offset + n) / scale)**alpha + reward * min(cap, n)`` in float64, rounded once.
        """
        scoring = self.algorithm.scoring
        score = op.Cast(score, to=DOUBLE)
        normed, rewards = [], []
        for length in lengths:
            # there is a length of 0 only where there is no hypothesis
            n = op.Cast(op.Max(length, 1), to=DOUBLE)
            size = op.Div(op.Add(self._offset, n), op.double(scoring.scale))
            normed.append(op.Div(score, op.Pow(size, self._alpha)))
            rewards.append(n if self._cap is None else op.Min(self._cap, n))
        final = op.Max(*normed)
        if scoring.reward:
            reward = op.Cast(scoring.reward, to=DOUBLE)
            final = op.Add(final, op.Max(*(op.Mul(reward, one) for one in rewards)))
        return op.Cast(final, to=FLOAT)

    def _counted(self, op: Builder, sizes: Sizes) -> tuple[Value, Value | None]:
        """Return the offset of lengths, with a prefix that counts, and the most that is rewarded.

        Both are [B, 1] float64.
        """
        scoring = self.algorithm.scoring
        offset = op.Cast(scoring.offset, to=DOUBLE)
        if sizes.prefix is not None and self.algorithm.prefix.in_length:
            scoring.behind(0)  # refuses a reward
            offset = op.Add(offset, op.Cast(self.prefix_length, to=DOUBLE))
        else:
            offset = sizes.column(op, offset)
        if not scoring.reward or scoring.ratio is None:
            return offset, None
        # kernels know it in float32
        cap = op.Mul(sizes.source_lengths(op), op.double(float(scoring.ratio)))
        return offset, op.Cast(op.Cast(cap, to=FLOAT), to=DOUBLE)

    def _stop_at(self, op: Builder) -> Value | None:
        """The number [1] of finished hypotheses that ends the search; see `Algorithm.stop_at`."""
        patience = self.algorithm.stop.patience
        if patience is None:
            return None
        num = self.width
        if patience != 1:
            most = op.Mul(op.Cast(num, to=DOUBLE), op.double(float(patience)))
            num = op.Cast(op.Floor(op.Add(most, op.double(0.5))), to=INT)
        elif self.is_held and self.algorithm.scoring.reward == 0:
            # hypotheses are popped in the order of raw scores
            num = op.Where(op.Equal(self._alpha, op.double(0.0)), self.n_best, num)
        return num

    def _limit(self, op: Builder, model: Transformer, sizes: Sizes, included: Value | int) -> Value:
        limit = sizes.column(op, sizes.max_length)
        by_source = self.algorithm.max_length
        if isinstance(by_source, SourceLimit):
            most = op.Mul(sizes.source_lengths(op), op.double(float(by_source.ratio)))
            most = op.Floor(op.Add(most, op.double(float(by_source.constant))))
            limit = op.Min(limit, op.Max(op.Cast(most, to=INT), 1))
        room = op.Sub(model.max_positions, self.prefix_length)
        return op.Min(op.Max(op.Sub(limit, included), 1), room)

    def _margins(self, op: Builder) -> tuple[Value | None, ...]:
        """Make an input of every rule of pruning that is on: candidates, margins in nats."""

        def given(name: str) -> float | None:
            number: float | None = getattr(self.algorithm.pruning, name)
            # an infinite ratio means that the rule is off
            return None if number == math.inf and name != "threshold" else number

        def nats(name: str) -> Value | None:
            ratio = given(name)
            if ratio is None:
                return None
            value = op.Cast(op.number(name, float(ratio)), to=DOUBLE)
            return op.Cast(op.Neg(op.Log(value)), to=FLOAT)

        most, threshold = given("max_candidates"), given("threshold")
        margins = [
            None if threshold is None else op.number("threshold", float(threshold)),
            nats("relative_threshold"),
        ]
        there = [one for one in margins if one is not None]
        num = None if most is None else op.number("max_candidates", int(most))
        return num, op.Min(*there) if there else None, nats("local_threshold")


def _prefix(op: Builder, sizes: Sizes) -> tuple[Value | None, Value]:
    """Return the prefix with a column of -1 behind it [B, P + 1], and the length of each [B, 1]."""
    column = op.sizes(sizes.batch, 1)
    if sizes.prefix is None:
        return None, op.Expand(0, column)
    end = op.Expand(-1, op.sizes(op.size(sizes.prefix, 0), 1))
    prefix = op.Concat(sizes.prefix, end, axis=1)
    prefix = op.Expand(prefix, op.sizes(sizes.batch, op.size(prefix, 1)))
    return prefix, op.ReduceSum(op.Cast(op.GreaterOrEqual(prefix, 0), to=INT), [1])
