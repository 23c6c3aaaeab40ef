"""How candidates finish, as operators: one small object for each rule of `pybeam.contracts.Finishing`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from pybeam.contracts import Finishing
from pybeam.export.builder import Builder, Value
from pybeam.export.hypotheses import INF, Candidates, number_of
from pybeam.search.algorithms import Algorithm


class Split(NamedTuple):
    """Which of the ranked candidates finish in this step, and which are the next beam: [B, N] bool."""

    finishes: Value
    goes_on: Value


class FinishingRule(ABC):
    """The fate of a candidate that ends in EOS."""

    is_held = False

    def num_ranked(self, op: Builder, width: Value) -> Value:
        """How many of the best candidates of a beam the rule looks at, [1]."""
        return width

    def places(self, op: Builder, width: Value, found: Value) -> Value:
        """The places of the next beam [B, 1], after `found` [B, 1] have finished."""
        return op.Max(op.Sub(width, found), 0)

    def split(self, op: Builder, ranked: Candidates, places: Value) -> Split:
        """Divide the candidates of a step."""
        is_one = op.Greater(ranked.score, -INF)
        is_early = op.And(is_one, op.Less(op.range(op.size(is_one, 1)), places))
        return self._divide(op, is_one, is_early, ranked.has_ended, places)

    @abstractmethod
    def _divide(
        self, op: Builder, is_one: Value, is_early: Value, has_ended: Value, places: Value
    ) -> Split:
        """Divide those that are candidates at all, of which the early ones have a rank within the places."""


@dataclass(frozen=True)
class Refill(FinishingRule):
    """At rank < width it finishes, and the next candidate takes its place; else it is dropped."""

    num_eos: int

    def num_ranked(self, op: Builder, width: Value) -> Value:
        return op.Mul(width, 1 + self.num_eos)

    def places(self, op: Builder, width: Value, found: Value) -> Value:
        return width

    def _divide(
        self, op: Builder, is_one: Value, is_early: Value, has_ended: Value, places: Value
    ) -> Split:
        goes_on = op.And(is_one, op.Not(has_ended))
        has_place = op.LessOrEqual(number_of(op, goes_on), places)
        return Split(op.And(is_early, has_ended), op.And(goes_on, has_place))


@dataclass(frozen=True)
class Held(FinishingRule):
    """It stays in the beam; a leading run of ended ones is popped, each for a place."""

    is_held = True

    def _divide(
        self, op: Builder, is_one: Value, is_early: Value, has_ended: Value, places: Value
    ) -> Split:
        leads = op.Equal(number_of(op, op.Not(has_ended)), 0)
        return Split(op.And(is_early, leads), op.And(is_early, op.Not(leads)))


@dataclass(frozen=True)
class Shrink(FinishingRule):
    """It leaves, and its place stays empty: for good, or for one step."""

    regrows: bool

    def places(self, op: Builder, width: Value, found: Value) -> Value:
        return width if self.regrows else super().places(op, width, found)

    def _divide(
        self, op: Builder, is_one: Value, is_early: Value, has_ended: Value, places: Value
    ) -> Split:
        return Split(op.And(is_early, has_ended), op.And(is_early, op.Not(has_ended)))


def rule_of(algorithm: Algorithm, num_eos: int) -> FinishingRule:
    """Return the rule of this algorithm, for a model with so many tokens that end a hypothesis."""
    if algorithm.finishing == Finishing.HELD:
        return Held()
    if algorithm.finishing == Finishing.SHRINK:
        return Shrink(algorithm.regrows)
    return Refill(num_eos)
