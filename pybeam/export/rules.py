"""`Rules`: an algorithm as values of a graph, and which algorithms can be one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pybeam.arguments import ArgumentError
from pybeam.export.builder import DOUBLE, FLOAT, INT, Builder, Value
from pybeam.export.finishing import FinalScores, FinishingRule, StopRule, stop_at
from pybeam.export.processors import Chain, Inputs
from pybeam.limits import SourceLimit
from pybeam.models.transformer.model import Transformer
from pybeam.processors.base import perturbs
from pybeam.search.algorithms import DEFAULT_MAX_LENGTH, Algorithm
from pybeam.search.pruning import Pruning

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


class Margins(NamedTuple):
    """Rules by which candidates leave the beam early, see `Pruning`; None: there is none."""

    max_candidates: Value | None
    margin: Value | None
    local_margin: Value | None

    @classmethod
    def record(cls, op: Builder, inputs: Inputs, pruning: Pruning) -> Margins:
        """Make an input of every rule that is on."""

        def given(name: str) -> float | None:
            number = getattr(pruning, name)
            # an infinite ratio means that the rule is off
            return None if number == math.inf and name != "threshold" else number

        def nats(name: str) -> Value | None:
            ratio = given(name)
            if ratio is None:
                return None
            value = op.Cast(inputs.number(name, float(ratio)), to=DOUBLE)
            return op.Cast(op.Neg(op.Log(value)), to=FLOAT)

        most, threshold = given("max_candidates"), given("threshold")
        margins = [
            None if threshold is None else inputs.number("threshold", float(threshold)),
            nats("relative_threshold"),
        ]
        there = [one for one in margins if one is not None]
        return cls(
            None if most is None else inputs.number("max_candidates", int(most)),
            op.Min(*there) if there else None,
            nats("local_threshold"),
        )


@dataclass(frozen=True)
class Rules:
    """An algorithm as values of a graph, which the body of its loop reads.

    Attributes:
        algorithm: what is fixed.
        finishing: what happens to a candidate that ends.
        margins: which candidates leave the beam early.
        chain: the processors.
        stop: when a source is done.
        width, n_best: [1].
        prefix: [B, P + 1], padded with -1; None: there is none.
        prefix_length: [B, 1].
        min_length: [B, 1] tokens behind the prefix before EOS; None: any number.
    """

    algorithm: Algorithm
    finishing: FinishingRule
    margins: Margins
    chain: Chain
    stop: StopRule
    width: Value
    n_best: Value
    prefix: Value | None
    prefix_length: Value
    min_length: Value | None

    @classmethod
    def record(
        cls,
        op: Builder,
        inputs: Inputs,
        model: Transformer,
        algorithm: Algorithm,
        sizes: Sizes,
        *,
        returns_all: bool,
    ) -> Rules:
        """Record what comes before the loop. With `returns_all` n_best is the width, and no input."""
        width, n_best = sizes.width, sizes.width
        if not returns_all:
            n_best = op.Min(op.Reshape(inputs.number("n_best", algorithm.n_best), [1]), width)
        prefix, prefix_length = _prefix(op, sizes)
        included = prefix_length if algorithm.prefix.in_limits else 0
        min_length = None
        if algorithm.min_length:
            least = op.Sub(inputs.number("min_length", algorithm.min_length), included)
            min_length = op.Max(op.Expand(least, op.sizes(sizes.batch, 1)), 0)
        alpha = op.Cast(sizes.length_penalty, to=DOUBLE)
        scores = _scores(op, algorithm, sizes, alpha, prefix_length)
        stop = StopRule(
            algorithm.stop,
            stop_at(op, algorithm, width, n_best, alpha),
            width if algorithm.stop.needs_full_beam else n_best,
            _limit(op, algorithm, model, sizes, prefix_length, included),
            scores,
        )
        return cls(
            algorithm,
            FinishingRule(algorithm.finishing, algorithm.regrows, len(model.eos_ids)),
            Margins.record(op, inputs, algorithm.pruning),
            Chain(inputs, model, algorithm.processors),
            stop,
            width,
            n_best,
            prefix,
            prefix_length,
            min_length,
        )

    @property
    def num_kept(self) -> int:
        """For each place of the beam, the hypotheses that may have finished and are kept."""
        # in the last step a whole beam may finish beside those that have
        return 2 if self.algorithm.refills and not self.algorithm.stop.keeps_best else 1

    def num_steps(self, op: Builder) -> Value:
        """Return the number [] of steps at most."""
        return op.ReduceMax(op.Add(self.stop.limit, self.prefix_length), keepdims=0)


def _prefix(op: Builder, sizes: Sizes) -> tuple[Value | None, Value]:
    """Return the prefix with a column of -1 behind it [B, P + 1], and the length of each [B, 1]."""
    column = op.sizes(sizes.batch, 1)
    if sizes.prefix is None:
        return None, op.Expand(0, column)
    end = op.Expand(-1, op.sizes(op.size(sizes.prefix, 0), 1))
    prefix = op.Concat(sizes.prefix, end, axis=1)
    prefix = op.Expand(prefix, op.sizes(sizes.batch, op.size(prefix, 1)))
    return prefix, op.ReduceSum(op.Cast(op.GreaterOrEqual(prefix, 0), to=INT), [1])


def _limit(
    op: Builder,
    algorithm: Algorithm,
    model: Transformer,
    sizes: Sizes,
    prefix_length: Value,
    included: Value | int,
) -> Value:
    """Return [B, 1], the generated tokens, EOS included, at which rows are cut."""
    limit = op.Expand(sizes.max_length, op.sizes(sizes.batch, 1))
    by_source = algorithm.max_length
    if isinstance(by_source, SourceLimit):
        length = op.Cast(op.Unsqueeze(sizes.source_length, [1]), to=DOUBLE)
        most = op.Mul(length, op.double(float(by_source.ratio)))
        most = op.Floor(op.Add(most, op.double(float(by_source.constant))))
        limit = op.Min(limit, op.Max(op.Cast(most, to=INT), 1))
    room = op.Sub(model.max_positions, prefix_length)
    return op.Min(op.Max(op.Sub(limit, included), 1), room)


def _scores(
    op: Builder, algorithm: Algorithm, sizes: Sizes, alpha: Value, prefix_length: Value
) -> FinalScores:
    scoring, counted = algorithm.scoring, prefix_length
    offset = op.Cast(scoring.offset, to=DOUBLE)
    if sizes.prefix is not None and algorithm.prefix.in_length:
        scoring.behind(0)  # refuses a reward
        offset = op.Add(offset, op.Cast(counted, to=DOUBLE))
    else:
        offset = op.Expand(offset, op.sizes(sizes.batch, 1))
    cap = None
    if scoring.reward and scoring.ratio is not None:
        length = op.Cast(op.Unsqueeze(sizes.source_length, [1]), to=DOUBLE)
        # kernels know it in float32
        cap = op.Cast(op.Mul(length, op.double(float(scoring.ratio))), to=FLOAT)
        cap = op.Cast(cap, to=DOUBLE)
    return FinalScores(scoring, alpha, offset, cap)
