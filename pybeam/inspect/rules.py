"""The rules of `pybeam.ops.select` once more, for one beam, so that each says what it drops and why."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.contracts import Finishing, SelectOptions
from pybeam.inspect.tree import Fate

INF = math.inf


class Asked(NamedTuple):
    """The arguments of a `select`."""

    logits: Tensor
    score: Tensor
    offset: Tensor
    width: Tensor
    options: SelectOptions


class Candidate(NamedTuple):
    """A continuation of an entry of the beam, or the entry itself, if it is held."""

    parent: int  # its place in the beam
    token: int
    log_prob: float
    score: float
    rank: int  # among the continuations of its parent
    is_held: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.parent, self.token


def ranked_candidates(asked: Asked, slot: int) -> list[Candidate]:
    """All continuations that are possible, best first."""
    logits, score, offset, _, options = asked
    bounds = offset.tolist()
    held = [False] * bounds[-1] if options.is_ended is None else options.is_ended.tolist()
    row = sum(not one for one in held[: bounds[slot]])
    found: list[Candidate] = []
    for parent, entry in enumerate(range(bounds[slot], bounds[slot + 1])):
        own = float(score[entry])
        if held[entry]:
            found.append(Candidate(parent, options.eos_ids[0], 0.0, own, 0, True))
            continue
        if (given := given_token(options, slot)) >= 0:
            found.append(Candidate(parent, given, 0.0, own, 0))
            continue
        numbers = logits[row].float() + 0.0
        row += 1
        log_prob = torch.log_softmax(numbers, 0) if options.normalise else numbers
        order = torch.sort(numbers, descending=True, stable=True).indices
        values = log_prob[order].tolist()
        found += [
            Candidate(parent, token, value, own + value, rank)
            for rank, (token, value) in enumerate(zip(order.tolist(), values, strict=True))
            if value > -INF
        ]
    return sorted(found, key=lambda one: -one.score)


def given_token(options: SelectOptions, slot: int) -> int:
    """The token of the prefix that comes next; -1: none does."""
    return -1 if options.forced is None else int(options.forced[slot])


class Judge:
    """The rules of one step, in the order of `pybeam.ops.select`."""

    def __init__(self, asked: Asked, slot: int) -> None:
        options = asked.options
        self._width = int(asked.width[slot])
        self._eos_ids, self._finishing = options.eos_ids, Finishing(options.finishing)

        def at(values: Tensor | None, default: float) -> float:
            return default if values is None else float(values[slot])

        self._most = at(options.max_candidates, INF)
        self._margin, self._local = at(options.margin, INF), at(options.local_margin, INF)
        self._best_finished = at(options.best_finished, -INF)
        self._bans_eos = bool(at(options.ban_eos, 0.0))
        self.num_candidates = 0

    def ends(self, one: Candidate) -> bool:
        """Whether a candidate ends in EOS."""
        return self._finishing != Finishing.NONE and one.token in self._eos_ids

    def fates(self, ranked: list[Candidate]) -> list[tuple[Fate, str]]:
        """Return what becomes of each candidate, and why."""
        self.num_candidates = len(ranked)
        found: dict[Candidate, tuple[Fate, str]] = {}
        banned: dict[int, int] = {}
        possible = []
        for one in ranked:
            before = banned.get(one.parent, 0)
            if self._bans_eos and one.token in self._eos_ids and not one.is_held:
                banned[one.parent] = before + 1
                found[one] = Fate.BANNED, "the output would be too short"
            elif one.rank - before >= self._most:
                found[one] = (
                    Fate.MAX_CANDIDATES,
                    f"continuation {one.rank - before + 1} of its parent, of {self._most:.0f} at most",
                )
            else:
                possible.append(one)
        going_on, finished = self._finish(possible, found)
        self._prune(going_on, finished, found)
        return [found[one] for one in ranked]

    def _finish(
        self, ranked: list[Candidate], found: dict[Candidate, tuple[Fate, str]]
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Say which candidates are too many, and which finish; returns those that go on, and these."""
        refills = self._finishing == Finishing.REFILL
        most = self._width * (1 + len(self._eos_ids) if refills else 1)
        going_on: list[Candidate] = []
        finished: list[Candidate] = []
        for rank, one in enumerate(ranked):
            too_many = Fate.WIDTH, f"rank {rank + 1}, in a beam of {self._width}"
            ends = self.ends(one)
            if rank >= most or (refills and not ends and len(going_on) >= self._width):
                found[one] = too_many
            elif ends and refills and rank >= self._width:
                late = f"it ends at rank {rank + 1}; the first {self._width} may finish"
                found[one] = Fate.LATE_END, late
            # of those that are held, the first ones are popped
            elif ends and (self._finishing != Finishing.HELD or not going_on):
                found[one] = Fate.FINISHED, ""
                finished.append(one)
            else:
                found[one] = (Fate.HELD if ends else Fate.KEPT), ""
                going_on.append(one)
        return going_on, finished

    def _prune(
        self,
        going_on: list[Candidate],
        finished: list[Candidate],
        found: dict[Candidate, tuple[Fate, str]],
    ) -> None:
        """Say which of those that go on fall behind the best."""
        is_held = self._finishing == Finishing.HELD
        rivals = [one.score for one in (*going_on, *(finished if is_held else ()))]
        best = max([*rivals, self._best_finished], default=-INF)
        last = [one.log_prob for one in going_on if not self.ends(one) or not one.is_held]
        best_last = max(last, default=-INF)
        for one in going_on:
            behind, behind_last = best - one.score, best_last - one.log_prob
            if not _is_within(behind, self._margin):
                limit = abs(self._margin)
                found[one] = Fate.THRESHOLD, f"{behind:.2f} nats behind the best, of {limit:.2f}"
            elif not one.is_held and not _is_within(behind_last, self._local):
                limit = abs(self._local)
                found[one] = (
                    Fate.LOCAL_THRESHOLD,
                    f"its last token is {behind_last:.2f} nats behind the best, of {limit:.2f}",
                )


def _is_within(behind: float, margin: float) -> bool:
    # a negative margin keeps ties
    return behind <= -margin if margin < 0 else behind < margin
