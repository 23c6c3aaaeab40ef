"""`Finished`: the hypotheses that have finished, and what a step adds to them."""

from __future__ import annotations

from pybeam.export.builder import Builder, Value
from pybeam.export.finishing import Split
from pybeam.export.hypotheses import INF, PADDING, Candidates, Hypotheses, history, number_of
from pybeam.export.rules import Rules


class Finished:
    """How a search keeps what finishes: in order, or the best."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def kept(self, op: Builder, finishes: Value, found: Value) -> Value:
        """Those that finish and count: where the first are kept, no more than the width in all."""
        algorithm = self._rules.algorithm
        if algorithm.stop.keeps_best or not algorithm.refills or algorithm.regrows:
            return finishes
        number = op.Add(found, number_of(op, finishes))
        return op.And(finishes, op.LessOrEqual(number, self._rules.width))

    def finals(self, op: Builder, old: Hypotheses, ranked: Candidates, finishes: Value) -> Value:
        """Return [B, F + N], the final scores of what had finished and what finishes; -inf for others."""
        scores = self._rules.stop.scores
        score = op.Where(finishes, ranked.score, -INF)
        new = Hypotheses(ranked.token, score, ranked.length, ranked.has_ended)
        return op.Concat(scores.of(op, old), scores.of(op, new), axis=1)

    def after(
        self, op: Builder, old: Hypotheses, live: Hypotheses, ranked: Candidates, ends: Split
    ) -> Hypotheses:
        """Add the candidates that finish, and behind them those that are left in a beam that ends.

        Args:
            old: what had finished, F of each source.
            live: the beam that the candidates continue.
            ranked: N candidates of each source.
            ends: which of them finish, and which are left: [B, N] bool.
        """
        size, num = op.size(old.score, 1), op.size(ranked.score, 1)
        index, there = self._order(op, old, ranked, ends, size, num)  # [B, F]
        place = op.Expand(op.range(size), op.Shape(old.score))
        # the line that each continues, and with which token
        parent = op.Concat(place, op.Add(ranked.parent, size), axis=1)
        own = op.Where(ranked.is_held, PADDING, ranked.token)
        token = op.Concat(op.Expand(PADDING, op.Shape(old.score)), own, axis=1)
        parent, token = (op.GatherElements(one, index, axis=1) for one in (parent, token))
        before = history(op, op.Concat(old.token, live.token, axis=1), parent)
        pairs = zip(old[1:], (ranked.score, ranked.length, ranked.has_ended), strict=True)
        score, length, has_ended = (
            op.GatherElements(op.Concat(*pair, axis=1), index, axis=1) for pair in pairs
        )
        return Hypotheses(
            op.Concat(before, op.Unsqueeze(token, [2]), axis=2),
            op.Where(there, score, -INF),
            length,
            has_ended,
        )

    def _order(
        self,
        op: Builder,
        old: Hypotheses,
        ranked: Candidates,
        ends: Split,
        size: Value,
        num: Value,
    ) -> tuple[Value, Value]:
        """Find which F of old hypotheses and candidates are kept: places [B, F], and where there is one."""
        # old ones come first, then those that finish, then those that are left
        earlier = op.Sub(op.Add(size, op.Mul(num, 2)), op.range(size))
        behind = op.Sub(num, op.range(num))
        later = op.Where(ends.finishes, op.Add(behind, num), op.Where(ends.goes_on, behind, 0))
        key = op.Concat(op.Where(old.exists(op), earlier, 0), later, axis=1)  # [B, F + N]
        if not self._rules.algorithm.stop.keeps_best:
            key, index = op.TopK(key, size, axis=1, outputs=2)
            return index, op.Greater(key, 0)
        key, index = op.TopK(key, op.Add(size, num), axis=1, outputs=2)
        final = self.finals(op, old, ranked, op.Or(*ends))
        # TopK prefers the earlier among equals
        final = op.GatherElements(final, index, axis=1)
        best = op.TopK(final, size, axis=1, outputs=2)[1]
        key, index = (op.GatherElements(one, best, axis=1) for one in (key, index))
        return index, op.Greater(key, 0)
