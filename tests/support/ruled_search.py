"""Rules of `pybeam.rule` in plain Python: one candidate after another, in a plain search.

It is written from the docstrings of `pybeam.study`, and shares no code with the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from support.phrases import AllocatedSearch
from support.whole_search import INF, Candidate, Entry, Rules, Search

F = np.float32


@dataclass
class Facts:
    """All that a rule sees of a candidate, and of its beam."""

    score: np.float32
    log_prob: np.float32
    token: int
    sibling_rank: int
    parent: int
    is_eos: bool
    is_held: bool
    best_finished: float
    num_generated: int
    num_finished: int


@dataclass(frozen=True)
class PlainRule:
    """A rule. A score of None drops a candidate; `finish` returns the candidates that finish and go on."""

    score: Callable[[Facts], np.float32 | None] | None = None
    finish: Callable[[list[Facts], set[int], set[int]], tuple[set[int], set[int]]] | None = None
    stop: Callable[[RuledSearch, list[Entry], int], bool] | None = None
    siblings: int | None = None


class RuledSearch(Search):
    """A search with a rule."""

    def __init__(self, step: Callable, rules: Rules, plain: PlainRule) -> None:
        super().__init__(step, rules)
        self.plain, self.n = plain, 0

    def facts(self, candidate: Candidate, token: int) -> Facts:
        entry, is_held = candidate.entry, candidate.log_prob is None
        return Facts(
            score=entry.score,
            log_prob=F(0) if is_held else candidate.log_prob,
            token=self.rules.eos_ids[0] if is_held else token,
            sibling_rank=candidate.place[2],
            parent=candidate.place[1],
            is_eos=entry.ended,
            is_held=is_held,
            best_finished=self.best_finished,
            num_generated=self.n - 1,
            num_finished=len(self.finished),
        )

    def candidates(self, beam: list[Entry], n: int) -> list[Candidate] | None:
        self.n = n
        found = super().candidates(beam, n)
        if found is None:
            return None
        limit = self.plain.siblings or self.places_left(n) + len(self.rules.eos_ids)
        kept = []
        for candidate in found:
            entry, (_, parent, rank) = candidate.entry, candidate.place
            if rank >= limit and candidate.log_prob is not None:
                continue
            if entry.score == -INF:
                continue
            score = entry.score
            if self.plain.score is not None:
                token = entry.eos if entry.ended else entry.tokens[-1]
                score = self.plain.score(self.facts(candidate, token))
            if score is None:
                continue
            score = entry.score if candidate.log_prob is None else score
            log_probs, log_prob = entry.log_probs, candidate.log_prob
            if score != entry.score and log_prob is not None:
                log_prob = F(log_prob + F(score - entry.score))
                log_probs = [*log_probs[:-1], float(log_prob)]
            changed = Entry(entry.tokens, log_probs, F(score), entry.eos)
            kept.append(Candidate(changed, (-score, parent, rank), log_prob))
        return sorted(kept, key=lambda candidate: candidate.place)

    def divide(
        self, candidates: list[Candidate], width: int
    ) -> tuple[list[Candidate], list[Candidate]]:
        ends, goes_on = super().divide(candidates, width)
        if self.plain.finish is None:
            return ends, goes_on
        places = {id(candidate): i for i, candidate in enumerate(candidates)}
        chosen = [{places[id(one)] for one in some} for some in (ends, goes_on)]
        facts = [self.facts(one, -1) for one in candidates]
        finishes, going = self.plain.finish(facts, *chosen)
        finishes = {i for i in finishes if candidates[i].entry.ended}
        is_held = self.rules.finishing == "held"
        going = {i for i in going - finishes if is_held or not candidates[i].entry.ended}
        if self.rules.finishing == "refill":
            first, then = sorted(finishes)[:width], sorted(going)[:width]
        else:
            left = sorted(finishes | going)[:width]
            first, then = [i for i in left if i in finishes], [i for i in left if i in going]
        return [candidates[i] for i in first], [candidates[i] for i in then]

    def reason(self, ends: list[Candidate], goes_on: list[Candidate], n: int) -> str:
        reason = super().reason(ends, goes_on, n)
        beam = [candidate.entry for candidate in goes_on]
        if not reason and self.plain.stop is not None and self.plain.stop(self, beam, n):
            return "heuristic"
        return reason


class RuledAllocatedSearch(RuledSearch, AllocatedSearch):
    """The same, with phrases that outputs must contain."""

    def __init__(self, step: Callable, rules: Rules, plain: PlainRule, phrases: Sequence) -> None:
        AllocatedSearch.__init__(self, step, rules, phrases)
        self.plain, self.n = plain, 0
