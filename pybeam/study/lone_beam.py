"""The step of a `pybeam.rule` for one beam on a CPU, whose sizes the host may read.

Such a step costs as much as it has operations, and those of NumPy cost less than torch's. The step does what
`ruled_select` does for many beams, on arrays [N] of the candidates that there are, without empty places. A
hook finds tensors [1, N], which are made when it first asks for them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pybeam.backends.arrays import PLACES, Beams
from pybeam.contracts import Survivors
from pybeam.study.candidates import INF, Candidates, Given
from pybeam.study.ruled_select import (
    Hook,
    Moments,
    check_like,
    check_scores,
    divided,
    prune,
    ruled_select,
    settle,
)

NO_NAN = torch.zeros(1, dtype=torch.bool)
NUMBERS = np.arange(4096)
DEPTH, PREFIX_LENGTH = PLACES["depth"][1], PLACES["prefix_length"][1]


def is_lone(values: Tensor) -> bool:
    """Whether values [A] are of one beam, on a CPU."""
    return values.numel() == 1 and values.device.type == "cpu"


def where_on(beams: Beams, slot: Tensor, is_on: Tensor) -> Tensor | None:
    """Where a rule that is on in slots [S] acts [A, 1]: not within a prefix. None: everywhere."""
    if is_lone(slot):
        first, ints = slot.numpy().item(0), beams.ints.numpy()
        if is_on.numpy().item(first) and ints.item(first, DEPTH) >= ints.item(first, PREFIX_LENGTH):
            return None
    acts = (is_on & (beams.depth >= beams.prefix_length)).index_select(0, slot)[:, None]
    return None if acts.all() else acts


def lines_of(array: Tensor, slot: Tensor) -> Tensor:
    """A copy of the lines of slots [A]."""
    if not is_lone(slot):
        return array.index_select(0, slot)
    first = slot.numpy().item(0)
    return torch.from_numpy(array.numpy()[first : first + 1].copy())


def counted(n: int) -> np.ndarray:
    """0 to n - 1, [n] int64. Nobody may change them."""
    return NUMBERS[:n] if n <= len(NUMBERS) else np.arange(n)


def line(values: np.ndarray) -> Tensor:
    """Values as a line of one beam, [1, N]."""
    return torch.from_numpy(values[None])


class Lists(NamedTuple):
    """The `Listing` of one beam, as arrays."""

    token: np.ndarray
    log_prob: np.ndarray
    is_eos: np.ndarray
    is_held: np.ndarray
    row: np.ndarray  # [E]
    per_row: int


class LoneCandidates(Candidates):
    """`Candidates` of one beam: those at `places` of the lists, and what a hook may change, by name."""

    def __init__(self, lists: Lists, places: np.ndarray, **given: np.ndarray) -> None:
        self.listing: Any = lists
        self._places, self._given = places, given
        self._made: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in self._given:
            raise AttributeError(name)
        value = self._made[name] = line(self._given[name].copy())
        setattr(self, name, value)
        return value

    def left(self, name: str) -> np.ndarray:
        """Return what a hook has left under this name."""
        before, value = self._given[name], vars(self).get(name, self)
        if value is self:
            return before
        if value is not self._made.get(name, self):
            check_like(f"`candidates.{name}`", value, line(before))
        left: np.ndarray = value.numpy()[0]
        return left

    def _listed(self, values: Any) -> Tensor:
        return line(values[self._places])

    @cached_property
    def sibling_rank(self) -> Tensor:
        return line((self._places % self.listing.per_row).astype(np.int32))

    @cached_property
    def entry(self) -> Tensor:
        return line((self._places // self.listing.per_row).astype(np.int32))

    @cached_property
    def row(self) -> Tensor:
        row = line(self.listing.row[self._places // self.listing.per_row])
        return row.masked_fill(~self.keep | self.is_held, -1)


def select_with(given: Given, moments: Moments) -> Survivors:
    """`select` with the hooks of a rule: as here for one beam on a CPU, or as in `ruled_select`."""
    is_alone = is_lone(given.width) and given.logits.shape[0]
    found = listed(given, moments.siblings) if is_alone else None
    if found is None:
        return ruled_select(given, moments)
    (lists, score), options, acts = found, given.options, moments.acts is None
    keep, width = lists.token >= 0, int(given.width.numpy()[0])
    if moments.score is not None and acts:
        lists, score, keep = scored(lists, score, keep, moments.score)
    place = (keep & (score > -INF)).nonzero()[0]
    place = place[(-score[place]).argsort(kind="stable")[: options.most_candidates]]
    score, is_eos, keep = score[place], lists.is_eos[place], keep[place]
    rank = counted(len(place))
    finishes, goes_on = is_eos, rank < width
    if is_eos.any():
        finishes, goes_on = divided(is_eos, keep, rank, width, options)
    changed = dict(score=score, keep=keep, finishes=finishes, goes_on=goes_on)
    candidates = LoneCandidates(lists, place, **changed)
    if moments.finish is not None and acts and place.size:
        moments.finish(candidates)
        vars(candidates).pop("score", None)
        ends, goes = candidates.left("finishes"), candidates.left("goes_on")
        if ((ends > finishes) | (goes > goes_on)).any():
            settle(candidates, given.width[:, None], options)
            ends, goes = candidates.left("finishes"), candidates.left("goes_on")
        finishes, goes_on = ends, goes
    if (options.margin is not None or options.local_margin is not None) and place.size:
        prune(candidates, options)
        goes_on = candidates.left("goes_on")
    return packed(lists, place, score, finishes, goes_on, options.capacity)


def listed(given: Given, siblings: int | None) -> tuple[Lists, np.ndarray] | None:
    """All candidates of E entries, M of each, and their scores; None: a row is padding, or has a NaN."""
    options, num_rows = given.options, given.logits.shape[0]
    num_entries = int(given.offset.numpy()[-1])
    is_ended, num_held = None, 0
    if options.is_ended is not None:
        is_ended = options.is_ended.numpy()[:num_entries]
        num_held = int(np.count_nonzero(is_ended))
    if num_entries - num_held != num_rows:
        return None
    is_ended = is_ended if num_held else None
    most = siblings
    if most is None:
        most = int(given.width.numpy()[0]) + len(options.eos_ids)
    if options.max_candidates is not None:
        most = min(most, int(options.max_candidates.numpy()[0]))
    found = given.continuations(most)
    if True in found.has_nan.numpy().tolist():
        return None
    token, log_prob = found.token.numpy(), found.log_prob.numpy()
    row, is_held = counted(num_rows), np.zeros(token.shape, bool)
    if is_ended is not None:
        row = np.maximum(np.cumsum(~is_ended) - 1, 0)
        token, log_prob = token[row], log_prob[row]
        token[is_ended], log_prob[is_ended] = -1, -INF
        token[is_ended, 0], log_prob[is_ended, 0] = options.eos_ids[0], 0.0
        is_held = is_ended[:, None] & (token >= 0)
    score = given.score.numpy()[:num_entries, None].astype(log_prob.dtype, copy=False) + log_prob
    is_eos = token == options.eos_ids[0]
    for eos_id in options.eos_ids[1:]:
        is_eos |= token == eos_id
    lines = token.ravel(), log_prob.ravel(), is_eos.ravel(), is_held.ravel()
    return Lists(*lines, row, token.shape[1]), score.ravel()


def scored(
    lists: Lists, score: np.ndarray, kept: np.ndarray, hook: Hook
) -> tuple[Lists, np.ndarray, np.ndarray]:
    """The lists, the scores and the `keep` that a hook leaves; see `ruled_select.scored`."""
    places = counted(len(score))
    candidates = LoneCandidates(lists, places, score=score, keep=kept, finishes=kept, goes_on=kept)
    hook(candidates)
    after, keep = candidates.left("score"), candidates.left("keep") & kept
    if after is score or (after == score).all():
        return lists, score, keep
    after = np.where(kept & ~lists.is_held, after, score)
    check_scores(after.max())
    changes, log_prob = after != score, lists.log_prob.copy()
    log_prob[changes] += after[changes] - score[changes]
    return lists._replace(log_prob=log_prob), after, keep


def packed(
    lists: Lists,
    place: np.ndarray,
    score: np.ndarray,
    finishes: np.ndarray,
    goes_on: np.ndarray,
    capacity: int,
) -> Survivors:
    """The survivors [1, C]: those that finish, then those that go on, and empty ones until there are two."""
    first, other = finishes.nonzero()[0], goes_on.nonzero()[0]
    order = np.concatenate((first, other))
    place, missing = place[order], min(2, capacity) - len(order)

    def column(values: np.ndarray, fill: float) -> Tensor:
        if missing > 0:
            values = np.concatenate((values, np.full(missing, fill, values.dtype)))
        return line(values)

    return Survivors(
        column(lists.token[place], -1),
        column((place // lists.per_row).astype(np.int32), -1),
        column(score[order], -INF),
        column(lists.log_prob[place], -INF),
        torch.from_numpy(np.array([len(order)], np.int32)),
        torch.from_numpy(np.array([len(first)], np.int32)),
        NO_NAN,
    )
