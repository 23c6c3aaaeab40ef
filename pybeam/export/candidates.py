"""From the logits of a step to ranked candidates, and which of them finish, go on or leave the beam."""

from __future__ import annotations

from pybeam.export.beams import Beams
from pybeam.export.builder import Builder, Value
from pybeam.export.finishing import Split
from pybeam.export.hypotheses import INF, Candidates, Hypotheses, any_of, number_of
from pybeam.export.rows import GraphRows
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

    def split(self, op: Builder, beams: Beams, ranked: Candidates, depth: Value) -> Split:
        """Divide the candidates by the finishing rule, without those that leave the beam early."""
        rules = self._rules
        places = rules.finishing.places(op, rules.width, beams.found)
        finishes, goes_on = rules.finishing.split(op, ranked, places)
        _, margin, local_margin = rules.margins
        is_above = op.GreaterOrEqual if rules.algorithm.pruning.keep_ties else op.Greater
        stays = goes_on
        if margin is not None:
            rivals = op.Or(goes_on, finishes) if rules.finishing.is_held else goes_on
            best = op.ReduceMax(op.Where(rivals, ranked.score, -INF), [1])
            if rules.finishing.is_held:
                best = op.Max(best, beams.best)
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
        rows = GraphRows(
            live.token, places.place, rules.width, step, rules.prefix_length, rules.stop.limit
        )
        logits, log_prob = rules.chain(op, logits, rows)
        is_early = None
        if rules.min_length is not None:
            is_early = op.Less(rows.num_generated(op), rows.of(op, rules.min_length))  # [R, 1]
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
        forced, own = self._forced(op, rows, of_rows)
        return _only(op, token, log_prob, op.GreaterOrEqual(forced, 0), forced, own)

    def _forced(self, op: Builder, rows: GraphRows, log_prob: Value) -> tuple[Value, Value | float]:
        """Return each row's next token within its prefix [R, 1], or -1, and what the token counts."""
        prefix = self._rules.prefix
        last = op.Sub(op.size(prefix, 1), 1)
        forced = rows.of(op, op.Gather(prefix, op.Min(last, rows.position), axis=1))
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
