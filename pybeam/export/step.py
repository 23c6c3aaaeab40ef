"""`Step`: one step of a search as operators, from the logits of a beam to the next beam."""

from __future__ import annotations

from pybeam.contracts import Certificate, Top
from pybeam.export.builder import BOOL, INT, Builder, Value
from pybeam.export.hypotheses import (
    INF,
    PADDING,
    Beams,
    Candidates,
    Hypotheses,
    Split,
    any_of,
    count_of,
    first,
    history,
    number_of,
)
from pybeam.export.processors import GraphRows
from pybeam.export.rules import Rules
from pybeam.export.transformer import CrossAttention, KeyValue, Network, Places


class Step:
    """One step of a search, in the body of its loop.

    Args:
        op: records the body.
        network: what is searched.
        rules: the algorithm.
        cross: what rows see of their sources.
        beams: the state before the step.
        number: [], tokens behind the start token.
    """

    def __init__(
        self,
        op: Builder,
        network: Network,
        rules: Rules,
        cross: CrossAttention,
        beams: Beams,
        number: Value,
    ) -> None:
        self._op, self._network, self._rules = op, network, rules
        self._cross, self._beams, self._number = cross, beams, number

    def record(self) -> Beams:
        """Return the state after the step."""
        op, rules, beams, live = self._op, self._rules, self._beams, self._beams.live
        places = self._places(op.And(live.exists(op), op.Not(live.has_ended)))
        logits, written = self._network.step(
            op,
            op.Gather(op.Reshape(beams.token, [-1]), places.place, axis=0),
            op.Expand(self._number, op.Shape(places.place)),
            places,
            beams.own,
            op.bias(op.Concat(beams.seen, self._itself(), axis=2)),
            self._cross,
        )
        # tokens behind the prefix after this step
        self._depth = op.Sub(op.Add(self._number, 1), rules.prefix_length)  # [B, 1]
        ranked = self._ranked(logits, places)
        split = self._split(ranked)
        finishes = self._counted(split.finishes)
        index = first(op, split.goes_on, rules.width)
        chosen, is_one = ranked.at(op, index), op.GatherElements(split.goes_on, index, axis=1)
        after = live.followed_by(op, chosen, is_one)
        is_alive = op.And(is_one, op.Not(chosen.has_ended))  # [B, K]
        finals = None
        if rules.algorithm.stop.certificate:
            finals = self._finals(ranked, finishes)
        found = op.Add(beams.found, count_of(op, finishes))
        is_done, keeps_rows, is_topped = self._ending(found, split, finals, after, is_alive)
        left = op.And(split.goes_on, keeps_rows)
        if rules.algorithm.ended_only:
            left = op.And(left, ranked.has_ended)
        finished = self._finished(ranked, Split(finishes, left))
        goes_on = op.Not(is_done)
        after = after._replace(score=op.Where(goes_on, after.score, -INF))
        seen, own = self._kept(written, chosen.parent, op.And(is_alive, goes_on))
        best = op.ReduceMax(op.Where(finishes, ranked.score, -INF), [1])
        best = op.Max(beams.best, best)
        token = op.Gather(after.token, -1, axis=2)
        return Beams(token, seen, found, best, is_topped, after, finished, own)

    def _places(self, is_alive: Value) -> Places:
        """The rows: entries [B, K] that are alive. The others cost no product."""
        op = self._op
        flat = op.Reshape(op.Cast(is_alive, to=INT), [-1])
        row = op.Max(op.Sub(op.CumSum(flat, 0), 1), 0)
        return Places(op.Reshape(row, op.Shape(is_alive)), op.Squeeze(op.NonZero(flat), [0]))

    def _itself(self) -> Value:
        """Return [B, K, K] bool: in a step, a row sees itself and no other row."""
        op, width = self._op, self._rules.width
        row = op.range(width)
        is_itself = op.Equal(op.Unsqueeze(row, [1]), row)
        return op.Expand(is_itself, op.sizes(self._rules.batch, width, width))

    def _ranked(self, logits: Value, places: Places) -> Candidates:
        """The best continuations of every source, as many as the finishing rule looks at."""
        op, rules, live = self._op, self._rules, self._beams.live
        num = op.Mul(rules.width, 1 + len(rules.eos_ids)) if rules.refills else rules.width  # N
        token, log_prob = self._of_rows(logits, places, num)  # [R, M] each
        # [B, K, M] each
        token, log_prob = (op.Gather(one, places.row, axis=0) for one in (token, log_prob))
        if rules.is_held:
            # it goes on as it is, and in no other way
            is_held = op.Unsqueeze(live.has_ended, [2])
            token, log_prob = self._only(token, log_prob, is_held, rules.eos_ids[0], 0.0)
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
        length = op.Where(is_held, length, self._depth)
        return Candidates(token, parent, score, log_prob, length, self._is_eos(token), is_held)

    def _of_rows(self, logits: Value, places: Places, num: Value) -> tuple[Value, Value]:
        """Return the best tokens of every row and their log-probabilities, [R, M] each."""
        op, rules, model = self._op, self._rules, self._network.model
        sizes = rules.width, self._number, rules.prefix_length, rules.limit
        rows = GraphRows(op, model, self._beams.live.token, places.place, *sizes)
        logits, log_prob = rules.chain(logits, rows)
        is_early = None
        if rules.min_length is not None:
            is_early = op.Less(rows.num_generated(), rows.of(rules.min_length))  # [R, 1]
            of_eos = self._is_eos(op.range(op.size(logits, 1)))
            logits = op.Where(op.And(is_early, of_eos), -INF, logits)
        # within a row the logit decides, and TopK prefers the lower token among equals
        _, token = op.TopK(logits, op.Min(num, model.vocab_size), axis=1, outputs=2)
        of_rows, log_prob = log_prob, op.GatherElements(log_prob, token, axis=1)
        if is_early is not None:
            log_prob = op.Where(op.And(is_early, self._is_eos(token)), -INF, log_prob)
        most = rules.max_candidates
        if most is not None:
            log_prob = op.Where(op.Less(op.range(op.size(token, 1)), most), log_prob, -INF)
        if rules.prefix is None:
            return token, log_prob
        last = op.Sub(op.size(rules.prefix, 1), 1)
        # the next token of the prefix, or -1
        forced = rows.of(op.Gather(rules.prefix, op.Min(last, rows.position), axis=1))  # [R, 1]
        own: Value | float = 0.0
        if rules.algorithm.prefix.is_scored:
            own = op.GatherElements(of_rows, op.Max(forced, 0), axis=1)
            # a token that cannot follow counts nothing
            own = op.Where(op.Greater(own, -INF), own, 0.0)
        return self._only(token, log_prob, op.GreaterOrEqual(forced, 0), forced, own)

    def _only(
        self, token: Value, log_prob: Value, is_one: Value, given: Value | int, own: Value | float
    ) -> tuple[Value, Value]:
        """Where is_one [..., 1], a given token takes the place of all [..., M], at a log-prob of its own."""
        op = self._op
        is_first = op.Equal(op.range(op.Shape(token, start=-1)), 0)
        alone = op.Where(is_first, own, -INF)
        return op.Where(is_one, given, token), op.Where(is_one, alone, log_prob)

    def _is_eos(self, token: Value) -> Value:
        """Whether tokens of any shape end a hypothesis."""
        op, (eos_id, *others) = self._op, self._rules.eos_ids
        is_eos = op.Equal(token, eos_id)
        for other in others:
            is_eos = op.Or(is_eos, op.Equal(token, other))
        return is_eos

    def _split(self, ranked: Candidates) -> Split:
        """Divide the candidates by the finishing rule, without those that leave the beam early."""
        op, rules = self._op, self._rules
        finishes, goes_on = self._divided(ranked)
        is_above = op.GreaterOrEqual if rules.algorithm.pruning.keep_ties else op.Greater
        stays = goes_on
        if rules.margin is not None:
            rivals = op.Or(goes_on, finishes) if rules.is_held else goes_on
            best = op.ReduceMax(op.Where(rivals, ranked.score, -INF), [1])
            if rules.is_held:
                best = op.Max(best, self._beams.best)
            stays = op.And(stays, is_above(ranked.score, op.Sub(best, rules.margin)))
        if rules.local_margin is not None:
            rivals = op.And(goes_on, op.Not(ranked.is_held))
            best = op.ReduceMax(op.Where(rivals, ranked.log_prob, -INF), [1])
            is_near = is_above(ranked.log_prob, op.Sub(best, rules.local_margin))
            stays = op.And(stays, op.Or(ranked.is_held, is_near))
        if rules.prefix is None or not rules.algorithm.prefix.leading_eos:
            return Split(finishes, stays)
        # right behind a prefix, EOS that is not the best candidate takes a place, and nothing more
        is_behind = op.And(op.Equal(self._depth, 1), op.Greater(rules.prefix_length, 0))
        is_best = op.Slice(finishes, [0], [1], [1])  # [B, 1]
        is_late = op.And(is_behind, op.And(any_of(op, finishes), op.Not(is_best)))
        has_place = op.Less(number_of(op, stays), rules.width)
        return Split(
            op.And(finishes, op.Not(is_late)), op.And(stays, op.Or(has_place, op.Not(is_late)))
        )

    def _divided(self, ranked: Candidates) -> Split:
        """Divide the candidates as `pybeam.contracts.Finishing` says."""
        op, rules, has_ended = self._op, self._rules, ranked.has_ended
        places = rules.width
        if not rules.refills and not rules.algorithm.regrows:
            places = op.Max(op.Sub(rules.width, self._beams.found), 0)
        is_one = op.Greater(ranked.score, -INF)
        is_early = op.And(is_one, op.Less(op.range(op.size(is_one, 1)), places))
        if rules.is_held:
            leads = op.Equal(number_of(op, op.Not(has_ended)), 0)
            return Split(op.And(is_early, leads), op.And(is_early, op.Not(leads)))
        if not rules.refills:
            return Split(op.And(is_early, has_ended), op.And(is_early, op.Not(has_ended)))
        goes_on = op.And(is_one, op.Not(has_ended))
        has_place = op.LessOrEqual(number_of(op, goes_on), places)
        return Split(op.And(is_early, has_ended), op.And(goes_on, has_place))

    def _counted(self, finishes: Value) -> Value:
        """Those that finish and count: where the first are kept, no more than the width in all."""
        op, algorithm = self._op, self._rules.algorithm
        if algorithm.stop.keeps_best or not self._rules.refills:
            return finishes
        number = op.Add(self._beams.found, number_of(op, finishes))
        return op.And(finishes, op.LessOrEqual(number, self._rules.width))

    def _finals(self, ranked: Candidates, finishes: Value) -> Value:
        """Return [B, F + N], the final scores of what had finished and what finishes; -inf for others."""
        op, rules = self._op, self._rules
        score = op.Where(finishes, ranked.score, -INF)
        new = Hypotheses(ranked.token, score, ranked.length, ranked.has_ended)
        old = rules.final_scores(op, self._beams.finished)
        return op.Concat(old, rules.final_scores(op, new), axis=1)

    def _ending(
        self, found: Value, split: Split, finals: Value | None, after: Hypotheses, is_alive: Value
    ) -> tuple[Value, Value, Value]:
        """Decide which sources are done. Returns three times [B, 1] bool.

        Args:
            found: [B, 1] hypotheses that have finished.
            split: of the candidates.
            finals: final scores of all that has finished; only certificates need them.
            after: the next beam.
            is_alive: [B, K] bool, which entries of the next beam are rows.

        Returns:
            Whether a source is done; whether what is left in its beam finishes as it is; whether the best
            candidate of a step has ended.
        """
        op, rules, stop = self._op, self._rules, self._rules.algorithm.stop
        is_cut = op.GreaterOrEqual(self._depth, rules.limit)
        alive = op.ReduceMax(op.Cast(is_alive, to=INT), [1])  # [B, 1]
        is_over = op.Or(is_cut, op.Equal(alive, 0))
        is_topped = self._beams.is_topped
        early = []
        if rules.stop_at is not None:
            early.append(op.GreaterOrEqual(found, rules.stop_at))
        if stop.top:
            rank = op.range(op.size(split.finishes, 1))
            size = op.size(split.finishes, 1)
            ended, other = (op.ReduceMin(op.Where(one, rank, size), [1]) for one in split)
            is_now = op.Less(ended, other)
            is_topped = op.Or(is_now, is_topped) if stop.top == Top.EVER else is_now
            early.append(op.And(is_topped, op.GreaterOrEqual(found, rules.certified)))
        if stop.certificate:
            assert finals is not None
            early.append(self._certified(finals, after, is_alive))
        is_done = keeps_rows = is_over
        for ends in early:
            is_done, keeps_rows = op.Or(is_done, ends), op.And(keeps_rows, op.Not(ends))
        if stop.keeps_best:
            # all that is left may be among the best
            keeps_rows = op.Or(keeps_rows, is_cut)
        return is_done, keeps_rows, is_topped

    def _certified(self, finals: Value, after: Hypotheses, is_alive: Value) -> Value:
        """Return [B, 1] bool, whether nothing in the next beam can beat the finished hypotheses."""
        op, rules = self._op, self._rules
        best = op.TopK(finals, rules.certified, axis=1, outputs=2)[0]
        worst = op.Gather(best, [-1], axis=1)  # [B, 1]
        lengths = [self._depth]
        if rules.algorithm.stop.certificate == Certificate.BOUND:
            most = op.Add(rules.limit, round(rules.algorithm.scoring.cut_length_offset))
            lengths = [op.Min(op.Add(self._depth, 1), most), most]
        score = op.Where(is_alive, after.score, -INF)
        bound = rules.final_score(op, op.ReduceMax(score, [1]), lengths)
        is_held = op.And(after.exists(op), after.has_ended)
        held = op.Where(is_held, rules.final_scores(op, after), -INF)
        bound = op.Max(bound, op.ReduceMax(held, [1]))
        return op.And(op.Greater(worst, -INF), op.GreaterOrEqual(worst, bound))

    def _finished(self, ranked: Candidates, ends: Split) -> Hypotheses:
        """Add the candidates that finish, and behind them those that are left in a beam that ends.

        Args:
            ranked: N candidates of each source.
            ends: which of them finish, and which are left: [B, N] bool.
        """
        op, old, live = self._op, self._beams.finished, self._beams.live
        size, num = op.size(old.score, 1), op.size(ranked.score, 1)
        index, there = self._order(ranked, ends, size, num)  # [B, F]
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
        self, ranked: Candidates, ends: Split, size: Value, num: Value
    ) -> tuple[Value, Value]:
        """Find which F of old hypotheses and candidates are kept: places [B, F], and where there is one."""
        op = self._op
        # old ones come first, then those that finish, then those that are left
        earlier = op.Sub(op.Add(size, op.Mul(num, 2)), op.range(size))
        behind = op.Sub(num, op.range(num))
        later = op.Where(ends.finishes, op.Add(behind, num), op.Where(ends.goes_on, behind, 0))
        earlier = op.Where(self._beams.finished.exists(op), earlier, 0)
        key = op.Concat(earlier, later, axis=1)  # [B, F + N]
        if not self._rules.algorithm.stop.keeps_best:
            key, index = op.TopK(key, size, axis=1, outputs=2)
            return index, op.Greater(key, 0)
        key, index = op.TopK(key, op.Add(size, num), axis=1, outputs=2)
        final = self._finals(ranked, op.Or(*ends))
        # TopK prefers the earlier among equals
        final = op.GatherElements(final, index, axis=1)
        best = op.TopK(final, size, axis=1, outputs=2)[1]
        key, index = (op.GatherElements(one, best, axis=1) for one in (key, index))
        return index, op.Greater(key, 0)

    def _kept(
        self, written: list[KeyValue], parent: Value, is_alive: Value
    ) -> tuple[Value, list[KeyValue]]:
        """The tokens that rows [B, K] with these parents see, without those that no row of a beam sees."""
        op, width, beams = self._op, self._rules.width, self._beams
        is_parent = op.Equal(op.Unsqueeze(parent, [2]), op.range(width))  # [B, K, K]
        seen = op.GatherND(beams.seen, op.Unsqueeze(parent, [2]), batch_dims=1)
        seen = op.And(op.Concat(seen, is_parent, axis=2), op.Unsqueeze(is_alive, [2]))
        is_seen = op.ReduceMax(op.Cast(seen, to=INT), [1], keepdims=0)  # [B, U + K]
        num = op.ReduceMax(op.ReduceSum(is_seen, [1]), keepdims=0)
        index = first(op, op.Cast(is_seen, to=BOOL), op.Reshape(num, [1]))  # [B, num]
        # the same tokens for every row, and for every head
        by_row = op.Expand(op.Unsqueeze(index, [1]), op.sizes(1, width, 1))
        heads = self._network.num_heads
        by_head = op.Expand(op.Unsqueeze(index, [0, 3]), op.sizes(heads, 1, 1, 1))
        own = [
            KeyValue(
                *(
                    op.GatherND(op.Concat(*pair, axis=2), by_head, batch_dims=2)
                    for pair in zip(old, new, strict=True)
                )
            )
            for old, new in zip(beams.own, written, strict=True)
        ]
        return op.GatherElements(seen, by_row, axis=2), own
