"""Search with any finishing rule and any stop rule in plain Python: one source, one row after another.

It is written from docs/why/semantics.md and the contracts of `pybeam.ops.select` and `pybeam.stopping`. It
shares no code with the library. Scores are float32, so that exact comparison is possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from support.search_models import EOS

INF = math.inf
Line = list[tuple[int, float]]  # what may follow an entry, and its log-probability, best first
ZERO = np.float32(0)


@dataclass(frozen=True)
class Scale:
    """``S / ((offset + n) / scale)**alpha + reward * min(ratio * |x|, n)``"""

    alpha: float = 0.0
    offset: float = 0.0
    scale: float = 1.0
    reward: float = 0.0
    ratio: float = INF
    cut: float = 0.0  # so many tokens more are counted for a hypothesis that is cut

    def norm(self, score: float, n: int) -> float:
        return float(score) / ((self.offset + n) / self.scale) ** self.alpha

    def bonus(self, n: int, source_length: int) -> float:
        return self.reward * min(self.ratio * source_length, n) if self.reward else 0.0

    def final(self, score: float, n: int, source_length: int) -> float:
        return self.norm(score, n) + self.bonus(n, source_length)

    @property
    def is_raw(self) -> bool:
        return self.alpha == 0 and self.reward == 0


@dataclass(frozen=True)
class Rules:
    """The rules of one search. Margins are in nats below the best; `stop_at` counts finished hypotheses."""

    finishing: str  # "refill", "held" or "shrink"
    width: int  # places after a step behind the first ones
    n_best: int
    max_length: int
    min_length: int = 0
    ended_only: bool = False
    max_candidates: float = INF
    margin: float = INF
    local_margin: float = INF
    keep_ties: bool = False
    scale: Scale = Scale()
    stop_at: float = INF
    keeps_best: bool = True
    top: str = ""  # "now" or "ever"
    certificate: str = ""  # "bound" or "current"
    needs_full_beam: bool = False
    source_length: int = 1
    eos_ids: tuple[int, ...] = (EOS,)
    early_widths: tuple[int, ...] = ()  # places after each of the first steps
    regrows: bool = False  # "shrink": places that were left are free again in the next step
    scores_prefix: bool = False  # its tokens have their log-probs, and count in lengths

    def places(self, n: int) -> int:
        """Places of the beam after step n behind the prefix, which is the first if n is 1."""
        return self.early_widths[n - 1] if n <= len(self.early_widths) else self.width


@dataclass
class Entry:
    """A hypothesis, alive or ended."""

    tokens: list[int]
    log_probs: list[float] = field(default_factory=list)
    score: np.float32 = ZERO
    eos: int | None = None  # the EOS that ended it

    @property
    def ended(self) -> bool:
        return self.eos is not None

    @property
    def length(self) -> int:
        return len(self.log_probs)


@dataclass
class Candidate:
    entry: Entry
    place: tuple  # the key that candidates are sorted by, smallest first
    log_prob: np.float32 | None  # of its last token; None: it had ended before


@dataclass
class Outcome:
    found: list[Entry]
    reason: str
    steps: int
    expansions: int


class Search:
    """Search one source. `step` maps tokens to (token, log_prob) pairs, best first, or to None for NaN."""

    def __init__(self, step: Callable, rules: Rules) -> None:
        self.step, self.rules = step, rules
        self.finished: list[Entry] = []
        self.num_found = 0
        self.best_finished = -INF
        self.has_topped = False
        self.num_before = 0  # tokens of the prefix that count in lengths

    def run(self, prefix: list[int], most_steps: float = INF) -> Outcome:
        """Search behind a prefix; it is interrupted after so many steps."""
        rules = self.rules
        steps = expansions = 0
        first = Entry([])
        for token in prefix:
            steps, expansions = steps + 1, expansions + 1
            follows = self.step(first.tokens)
            if follows is None:
                return Outcome([], "error", steps, expansions)
            first = Entry([*first.tokens, token], first.log_probs, first.score)
            if rules.scores_prefix:
                # what cannot follow counts 0
                log_prob = dict(follows).get(token, ZERO)
                first.log_probs = [*first.log_probs, float(log_prob)]
                first.score = np.float32(first.score + log_prob)
        self.num_before = first.length
        beam = [first]
        for n in range(1, rules.max_length + 1):
            steps, expansions = steps + 1, expansions + sum(not row.ended for row in beam)
            candidates = self.candidates(beam, n)
            if candidates is None:
                return Outcome([], "error", steps, expansions)
            ends, goes_on = self.divide(candidates, self.places_left(n))
            goes_on = self.prune(ends, goes_on)
            for candidate in ends:
                self.finish(candidate.entry)
            beam = [candidate.entry for candidate in goes_on]
            reason = self.reason(ends, goes_on, n)
            is_last = n == rules.max_length
            if reason in ("empty_beam", "max_length") or (rules.keeps_best and is_last):
                for entry in beam:
                    if entry.ended or not rules.ended_only:
                        self.finish(entry, is_cut=True)
            if reason:
                return Outcome(self.ranked(), reason, steps, expansions)
            if steps == most_steps:
                found = self.ranked() or beam[:1]
                return Outcome(found, "interrupted", steps, expansions)
        raise AssertionError("max_length is a reason")

    def ranked(self) -> list[Entry]:
        found = sorted(self.finished, key=lambda entry: -np.float32(self.final(entry)))
        return found[: self.rules.n_best]

    def final(self, entry: Entry) -> float:
        scale = self.rules.scale
        n = entry.length + (0 if entry.ended else scale.cut)
        return scale.final(entry.score, n, self.rules.source_length)

    def candidates(self, beam: list[Entry], n: int) -> list[Candidate] | None:
        """List the candidates of a step, best first."""
        found = []
        lines = []
        for row in beam:
            follows = [] if row.ended else self.step(row.tokens)
            if follows is None:
                return None
            if n - 1 < self.rules.min_length:
                follows = [pair for pair in follows if pair[0] not in self.rules.eos_ids]
            lines.append(follows)
        for parent, (row, line) in enumerate(zip(beam, self.left(beam, lines, n), strict=True)):
            if row.ended:
                found.append(Candidate(row, (-row.score, parent, 0), None))
            for rank, (token, log_prob) in enumerate(line):
                if rank == self.rules.max_candidates:
                    break
                score = np.float32(row.score + log_prob)
                eos = token if token in self.rules.eos_ids else None
                tokens = [*row.tokens, token] if eos is None else row.tokens
                entry = Entry(tokens, [*row.log_probs, float(log_prob)], score, eos)
                found.append(Candidate(entry, (-score, parent, rank), log_prob))
        return sorted(found, key=lambda candidate: candidate.place)

    def left(self, beam: list[Entry], lines: list[Line], n: int) -> list[Line]:
        """Return what is left of the tokens that may follow each entry, if the beam's rows are compared."""
        return lines

    def places_left(self, n: int) -> int:
        """Places of the beam after step n that no finished hypothesis has taken."""
        takes = self.rules.finishing != "refill" and not self.rules.regrows
        return max(self.rules.places(n) - takes * self.num_found, 0)

    def divide(
        self, candidates: list[Candidate], width: int
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Return the candidates that finish now, and the next beam of so many places before pruning."""
        finishing = self.rules.finishing
        if finishing == "refill":
            ends = [c for c in candidates[:width] if c.entry.ended]
            seen = (1 + len(self.rules.eos_ids)) * width
            goes_on = [c for c in candidates[:seen] if not c.entry.ended]
            return ends, goes_on[:width]
        candidates = candidates[:width]
        if finishing == "shrink":
            return (
                [c for c in candidates if c.entry.ended],
                [c for c in candidates if not c.entry.ended],
            )
        run = 0
        while run < len(candidates) and candidates[run].entry.ended:
            run += 1
        return candidates[:run], candidates[run:]

    def prune(self, ends: list[Candidate], goes_on: list[Candidate]) -> list[Candidate]:
        scores = [c.entry.score for c in goes_on]
        if self.rules.finishing == "held":
            scores += [c.entry.score for c in ends] + [self.best_finished]
        last = [c.log_prob for c in goes_on if c.log_prob is not None]
        floor = np.float32(max(scores, default=-INF)) - np.float32(self.rules.margin)
        local_floor = np.float32(max(last, default=-INF)) - np.float32(self.rules.local_margin)
        passes = np.greater_equal if self.rules.keep_ties else np.greater
        return [
            c
            for c in goes_on
            if passes(c.entry.score, floor)
            and (c.log_prob is None or passes(c.log_prob, local_floor))
        ]

    def finish(self, entry: Entry, *, is_cut: bool = False) -> None:
        rules = self.rules
        is_first = rules.finishing == "refill" and not rules.keeps_best and not is_cut
        if is_first and len(self.finished) == rules.width:
            return
        self.num_found += 1
        self.best_finished = max(self.best_finished, entry.score)
        self.finished.append(entry)
        if rules.keeps_best:
            self.finished.sort(key=lambda one: -np.float32(self.final(one)))
            del self.finished[rules.width :]

    def reason(self, ends: list[Candidate], goes_on: list[Candidate], n: int) -> str:
        rules = self.rules
        leads = bool(ends) and (not goes_on or ends[0].place < goes_on[0].place)
        self.has_topped = leads or (rules.top == "ever" and self.has_topped)
        if self.num_found >= rules.stop_at:
            return "n_best" if rules.stop_at < rules.width else "width"
        if rules.top and self.has_topped and self.num_found >= self.certified:
            return "top_finished"
        if rules.certificate and self.is_certified([c.entry for c in goes_on], n):
            return "optimal" if rules.certificate == "bound" else "heuristic"
        if all(candidate.entry.ended for candidate in goes_on):
            return "empty_beam"
        return "max_length" if n == rules.max_length else ""

    @property
    def certified(self) -> int:
        return self.rules.width if self.rules.needs_full_beam else self.rules.n_best

    def is_certified(self, beam: list[Entry], n: int) -> bool:
        """Whether no continuation of the beam, at any length, can beat the finished hypotheses."""
        if len(self.finished) < self.certified:
            return False
        rules = self.rules
        lengths: Iterable[int] = [n]
        if rules.certificate == "bound" and n < rules.max_length:
            lengths = range(n + 1, rules.max_length + 1)
        lengths = [self.num_before + m for m in lengths]
        live = [row.score for row in beam if not row.ended]
        reachable = [np.float32(self.final(row)) for row in beam if row.ended]
        if live:
            norm = max(rules.scale.norm(max(live), m) for m in lengths)
            bonus = max(rules.scale.bonus(m, rules.source_length) for m in lengths)
            reachable.append(np.float32(norm + bonus))
        worst = np.float32(self.final(self.finished[self.certified - 1]))
        return worst >= max(reachable, default=-INF)
