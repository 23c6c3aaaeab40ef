"""From the logits of a step to ranked candidates, and what becomes of them."""

from __future__ import annotations

from pybeam.export.builder import Builder, Value
from pybeam.export.hypotheses import (
    INF,
    PADDING,
    Candidates,
    Hypotheses,
    Split,
    any_of,
    history,
    number_of,
)
from pybeam.export.processors import GraphRows
from pybeam.export.rules import Rules
from pybeam.export.transformer import Places
from pybeam.models.transformer.model import Transformer


class Ranking:
    """Logits of a step in, candidates out: by the rules of a search."""

    def __init__(self, model: Transformer, rules: Rules) -> None:
        self._model, self._rules = model, rules

    def candidates(
        self, op: Builder, live: Hypotheses, logits: Value, places: Places, step: Value
    ) -> Candidates:
        """The best continuations of every source, as many as the finishing rule looks at.

        Args:
            live: the beam, K entries of each of B sources.
            logits: [R, V].
            places: of the rows in the beam.
            step: [], tokens behind the start token.
        """
        rules = self._rules
        num = rules.finishing.num_ranked(op, rules.width)  # N
        token, log_prob = self._of_rows(op, live, logits, places, step, num)  # [R, M] each
        # [B, K, M] each
        token, log_prob = (op.Gather(one, places.row, axis=0) for one in (token, log_prob))
        if rules.finishing.is_held:
            # it goes on as it is, and in no other way
            is_held = op.Unsqueeze(live.has_ended, [2])
            token, log_prob = _only(op, token, log_prob, is_held, self._model.eos_id, 0.0)
        score = op.Add(op.Unsqueeze(live.score, [2]), log_prob)
        flat = op.sizes(op.size(score, 0), -1)
        # between rows the score decides, and TopK prefers the lower row among equals
        score, index = op.TopK(op.Reshape(score, flat), num, axis=1, outputs=2)  # [B, N]
        parent = op.Div(index, op.size(log_prob, 2))
        token, log_prob = (
            op.GatherElements(op.Reshape(one, flat), index, axis=1) for one in (token, log_prob)
        )
        is_held, length = (
            op.GatherElements(one, parent, axis=1) for one in (live.has_ended, live.length)
        )
        length = op.Where(is_held, length, self.depth(op, step))
        is_eos = self._is_eos(op, token)
        return Candidates(token, parent, score, log_prob, length, is_eos, is_held)

    def depth(self, op: Builder, step: Value) -> Value:
        """Return [B, 1], tokens behind the prefix after this step."""
        return op.Sub(op.Add(step, 1), self._rules.prefix_length)

    def split(
        self, op: Builder, ranked: Candidates, depth: Value, found: Value, best_before: Value
    ) -> Split:
        """Divide the candidates by the finishing rule, without those that leave the beam early.

        `found` [B, 1] hypotheses have finished before, of which the best one has the score `best_before`.
        """
        rules = self._rules
        places = rules.finishing.places(op, rules.width, found)
        finishes, goes_on = rules.finishing.split(op, ranked, places)
        _, margin, local_margin = rules.margins
        is_above = op.GreaterOrEqual if rules.algorithm.pruning.keep_ties else op.Greater
        stays = goes_on
        if margin is not None:
            rivals = op.Or(goes_on, finishes) if rules.finishing.is_held else goes_on
            best = op.ReduceMax(op.Where(rivals, ranked.score, -INF), [1])
            if rules.finishing.is_held:
                best = op.Max(best, best_before)
            stays = op.And(stays, is_above(ranked.score, op.Sub(best, margin)))
        if local_margin is not None:
            rivals = op.And(goes_on, op.Not(ranked.is_held))
            best = op.ReduceMax(op.Where(rivals, ranked.log_prob, -INF), [1])
            is_near = is_above(ranked.log_prob, op.Sub(best, local_margin))
            stays = op.And(stays, op.Or(ranked.is_held, is_near))
        split = Split(finishes, stays)
        if rules.prefix is not None and rules.algorithm.prefix.leading_eos:
            return self._demoted(op, split, depth)
        return split

    def _of_rows(
        self,
        op: Builder,
        live: Hypotheses,
        logits: Value,
        places: Places,
        step: Value,
        num: Value,
    ) -> tuple[Value, Value]:
        """Return the best tokens of every row and their log-probabilities, [R, M] each."""
        rules = self._rules
        sizes = rules.width, step, rules.prefix_length, rules.stop.limit
        rows = GraphRows(op, self._model, live.token, places.place, *sizes)
        logits, log_prob = rules.chain(logits, rows)
        is_early = None
        if rules.min_length is not None:
            is_early = op.Less(rows.num_generated(), rows.of(rules.min_length))  # [R, 1]
            of_eos = self._is_eos(op, op.range(op.size(logits, 1)))
            logits = op.Where(op.And(is_early, of_eos), -INF, logits)
        # within a row the logit decides, and TopK prefers the lower token among equals
        _, token = op.TopK(logits, op.Min(num, self._model.vocab_size), axis=1, outputs=2)
        of_rows, log_prob = log_prob, op.GatherElements(log_prob, token, axis=1)
        if is_early is not None:
            log_prob = op.Where(op.And(is_early, self._is_eos(op, token)), -INF, log_prob)
        most = rules.margins.max_candidates
        if most is not None:
            log_prob = op.Where(op.Less(op.range(op.size(token, 1)), most), log_prob, -INF)
        if rules.prefix is None:
            return token, log_prob
        forced, own = self._forced(rows, of_rows)
        return _only(op, token, log_prob, op.GreaterOrEqual(forced, 0), forced, own)

    def _forced(self, rows: GraphRows, log_prob: Value) -> tuple[Value, Value | float]:
        """Return each row's next token within its prefix [R, 1], or -1, and what the token counts."""
        op, prefix = rows.op, self._rules.prefix
        last = op.Sub(op.size(prefix, 1), 1)
        forced = rows.of(op.Gather(prefix, op.Min(last, rows.position), axis=1))
        if not self._rules.algorithm.prefix.is_scored:
            return forced, 0.0
        own = op.GatherElements(log_prob, op.Max(forced, 0), axis=1)
        # a token that cannot follow counts nothing
        return forced, op.Where(op.Greater(own, -INF), own, 0.0)

    def _is_eos(self, op: Builder, token: Value) -> Value:
        """Whether tokens of any shape end a hypothesis."""
        eos_id, *others = self._model.eos_ids
        is_eos = op.Equal(token, eos_id)
        for other in others:
            is_eos = op.Or(is_eos, op.Equal(token, other))
        return is_eos

    def _demoted(self, op: Builder, split: Split, depth: Value) -> Split:
        """Right behind a prefix, EOS that is not the best candidate takes a place, and nothing more."""
        rules = self._rules
        is_behind = op.And(op.Equal(depth, 1), op.Greater(rules.prefix_length, 0))
        is_best = op.Slice(split.finishes, [0], [1], [1])  # [B, 1]
        is_late = op.And(is_behind, op.And(any_of(op, split.finishes), op.Not(is_best)))
        has_place = op.Less(number_of(op, split.goes_on), rules.width)
        return Split(
            op.And(split.finishes, op.Not(is_late)),
            op.And(split.goes_on, op.Or(has_place, op.Not(is_late))),
        )


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


def _only(
    op: Builder,
    token: Value,
    log_prob: Value,
    is_one: Value,
    given: Value | int,
    own: Value | float,
) -> tuple[Value, Value]:
    """Where is_one [..., 1], a given token takes the place of all [..., M], at a log-prob of its own."""
    is_first = op.Equal(op.range(op.Shape(token, start=-1)), 0)
    alone = op.Where(is_first, own, -INF)
    return op.Where(is_one, given, token), op.Where(is_one, alone, log_prob)
