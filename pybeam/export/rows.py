"""`GraphRows`: the partial hypotheses that move in one step of a graph."""

from __future__ import annotations

from typing import NamedTuple

from pybeam.export.builder import Builder, Value


class GraphRows(NamedTuple):
    """The R rows of a step, as processors see them. Nothing is recorded that nobody asks for."""

    history: Value  # [B, K, t], tokens behind the start token; all rows have as many
    place: Value  # [R], b * K + k of each row
    width: Value  # [1], K
    position: Value  # [], t
    prefix_length: Value  # [B, 1]
    limit: Value  # [B, 1], generated tokens at which rows are cut

    def token(self, op: Builder) -> Value:
        """Return [R, t], the tokens of every row behind the start token."""
        return op.Gather(op.Flatten(self.history, axis=2), self.place, axis=0)

    def of(self, op: Builder, numbers: Value) -> Value:
        """Return [R, 1], every row's number among those of the sources [B, 1]."""
        return op.Gather(numbers, op.Div(self.place, self.width), axis=0)

    def num_generated(self, op: Builder) -> Value:
        """Return [R, 1], tokens behind the prefix."""
        return op.Sub(self.position, self.of(op, self.prefix_length))
