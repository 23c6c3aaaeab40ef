"""The step of a `pybeam.rule`: all candidates of a step as arrays, and the survivors that the rule leaves.

The kernel `select` lists the best continuations of each row, so that log-probabilities, ties and tokens are
those of every other search, bit by bit. All that follows is plain torch on arrays [A, N] of A beams. A small
step costs as much as it has operations, so each is left out where it would change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pybeam.contracts import Finishing, SelectOptions, Survivors
from pybeam.study.candidates import INF, INT, Candidates, Given, Listing, numbers

Array = TypeVar("Array", Tensor, np.ndarray)
Hook = Callable[[Candidates], None]


class Moments(NamedTuple):
    """The hooks of a rule in one step, and the beams for which they count."""

    score: Hook | None
    finish: Hook | None
    acts: Tensor | None  # [A, 1] bool, beams where it does; None: all
    siblings: int | None  # continuations of a row that are candidates; None: as many as can survive


def ruled_select(given: Given, moments: Moments) -> Survivors:
    """`select` of a backend, with the hooks of a rule between its parts."""
    options, width = given.options, given.width
    if not given.logits.shape[0]:
        return given.select(given.logits, given.score, given.offset, width, options)
    candidates, has_nan = listed(given, moments.siblings)
    if moments.score is not None:
        candidates = scored(candidates, moments.score, moments.acts)
    candidates = ranked(candidates, options.most_candidates)
    is_eos, keep, width = candidates.is_eos, candidates.keep, width[:, None]
    rank = numbers(keep.shape[1], keep.device)
    candidates.finishes, candidates.goes_on = divided(is_eos, keep, rank, width, options)
    if moments.finish is not None:
        finish(candidates, moments.finish, moments.acts, width, options)
    prune(candidates, options)
    return packed(candidates, has_nan, options.capacity)


def listed(given: Given, siblings: int | None) -> tuple[Candidates, Tensor | None]:
    """All candidates [A, E * M] of beams with E entries, and which beams [A] have a NaN; None: none has.

    A line has as many as its own beam allows, whatever the others are.
    """
    options, device = given.options, given.logits.device
    most_places = options.most_places + len(options.eos_ids)
    found = given.continuations(most_places if siblings is None else siblings)
    number = numbers(given.most_entries, device)
    per_row = found.token.shape[1]
    place = given.offset[:-1, None] + number  # [A, E], of entries
    is_row = place < given.offset[1:, None]
    place = place.clamp(max=given.score.numel() - 1).long()
    row, is_held = place, torch.zeros_like(is_row)
    if options.is_ended is not None:
        is_held = options.is_ended[place] & is_row
        is_row = is_row & ~is_held
        row = given.rows.offset[:-1, None] + (is_row.cumsum(1) - 1).clamp(min=0)
    row = row.clamp(max=given.logits.shape[0] - 1)
    token, log_prob = found.token[row], found.log_prob[row]  # [A, E, M]
    is_there = (token >= 0) & is_row[..., None]
    if siblings is None or options.max_candidates is not None:
        most = (
            given.width + len(options.eos_ids) if siblings is None else given.width * 0 + siblings
        )
        if options.max_candidates is not None:
            most = torch.minimum(most, options.max_candidates)
        is_there &= numbers(per_row, device) < most[:, None, None]
    token.masked_fill_(~is_there, -1)
    log_prob.masked_fill_(~is_there, -INF)
    held = torch.zeros_like(is_there)
    if options.is_ended is not None:
        held[..., 0] = is_held
        is_there |= held
        token[..., 0].masked_fill_(is_held, options.eos_ids[0])
        log_prob[..., 0].masked_fill_(is_held, 0.0)
    score = given.score[place].to(log_prob.dtype)[..., None] + log_prob
    is_eos = token == options.eos_ids[0]
    for eos_id in options.eos_ids[1:]:
        is_eos |= token == eos_id
    has_nan = None
    if found.has_nan.any():
        has_nan = (found.has_nan[row] & is_row).any(1)
    lines = token.flatten(1), log_prob.flatten(1), is_eos.flatten(1), held.flatten(1)
    listing, keep = Listing(*lines, row, per_row), is_there.flatten(1)
    return Candidates(score.flatten(1), keep, keep, keep, listing, None), has_nan


def scored(candidates: Candidates, hook: Hook, acts: Tensor | None) -> Candidates:
    """The candidates with the scores and the `keep` that a hook gives them where it `acts` [A, 1].

    The log-prob of the last token changes as the score does, so that a score is the sum of its log-probs.
    """
    before, kept, listing = candidates.score, candidates.keep, candidates.listing
    candidates.score, candidates.keep = before.clone(), kept.clone()
    hook(candidates)
    check_like("`candidates.score`", candidates.score, before)
    check_like("`candidates.keep`", candidates.keep, kept)
    score, keep = candidates.score, candidates.keep & kept
    if acts is not None:
        keep = torch.where(acts, keep, kept)
    if torch.equal(score, before):
        return Candidates(before, keep, keep, keep, listing, None)
    may_change = kept & ~listing.is_held
    score = torch.where(may_change if acts is None else may_change & acts, score, before)
    check_scores(float(score.amax()))
    changes = score != before
    gain = torch.where(changes, listing.log_prob + (score - before), listing.log_prob)
    return Candidates(score, keep, keep, keep, listing._replace(log_prob=gain), None)


def check_like(name: str, value: object, like: Tensor) -> None:
    """Raise ValueError unless a rule has left, or returned, a tensor of that shape and dtype."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor in a rule, but is {value!r}")
    if value.shape != like.shape or value.dtype != like.dtype:
        raise ValueError(
            f"{name} must be {like.dtype} {list(like.shape)} in a rule, but is {value.dtype} "
            f"{list(value.shape)}; a line of it is a beam"
        )


def check_scores(best: float) -> None:
    """Raise ValueError unless the best score that a rule has left is a number or -inf."""
    if not best < INF:
        raise ValueError(
            "a rule must leave scores that are numbers or -inf, but made a NaN or +inf; is one of its "
            "options infinite?"
        )


def ranked(candidates: Candidates, most: int) -> Candidates:
    """The best `most` candidates of each beam that are kept, best first.

    Ties stay in the order of rows, and of the tokens of a row.
    """
    key = candidates.score.masked_fill(~candidates.keep, -INF)
    score, place = key.sort(dim=1, descending=True, stable=True)
    score, place = score[:, :most], place[:, :most]
    keep = score > -INF
    return Candidates(score, keep, keep, keep, candidates.listing, place)


def divided(
    is_eos: Array, keep: Array, rank: Array, width: Any, options: SelectOptions
) -> tuple[Array, Array]:
    """Which of ranked candidates finish and which go on, by the algorithm's finishing rule."""
    is_within = keep & (rank < width)
    if options.finishing == Finishing.REFILL:
        is_seen = keep & (rank < (1 + len(options.eos_ids)) * width) & ~is_eos
        return is_within & is_eos, is_seen & (is_seen.cumsum(-1) <= width)
    ends = is_eos
    if options.finishing == Finishing.HELD:
        ends = is_eos.cumprod(-1) > 0
    elif options.finishing == Finishing.NONE:
        ends = is_eos & ~is_eos
    return is_within & ends, is_within & ~ends


def finish(
    candidates: Candidates,
    hook: Hook,
    acts: Tensor | None,
    width: Tensor,
    options: SelectOptions,
) -> None:
    """Let a hook say which candidates finish and which go on, where it `acts` [A, 1].

    Only what ends may finish, and only where ended hypotheses are held may one go on. There are `width`
    places for each, or for both together where finished hypotheses cost places: the first ones get them.
    """
    finishes, goes_on = candidates.finishes, candidates.goes_on
    candidates.finishes, candidates.goes_on = finishes.clone(), goes_on.clone()
    score = candidates.score
    candidates.score = score.clone()
    hook(candidates)
    # the log-probs of tokens add up to these
    candidates.score = score
    for name in ("finishes", "goes_on"):
        check_like(f"`candidates.{name}`", getattr(candidates, name), finishes)
    if (
        acts is None
        and not ((candidates.finishes > finishes) | (candidates.goes_on > goes_on)).any()
    ):
        # those that only go leave places
        return
    settle(candidates, width, options)
    if acts is not None:
        candidates.finishes = torch.where(acts, candidates.finishes, finishes)
        candidates.goes_on = torch.where(acts, candidates.goes_on, goes_on)


def settle(candidates: Candidates, width: Tensor, options: SelectOptions) -> None:
    """Keep of a hook's choice those that may finish or go on, and have a place; see `finish`."""
    ends = candidates.finishes & candidates.is_eos & candidates.keep
    goes = candidates.goes_on & candidates.keep & ~ends
    if options.finishing != Finishing.HELD:
        goes &= ~candidates.is_eos
    if options.finishing == Finishing.REFILL:
        ends &= ends.cumsum(1) <= width
        goes &= goes.cumsum(1) <= width
    else:
        is_one = (ends | goes).cumsum(1) <= width
        ends, goes = ends & is_one, goes & is_one
    candidates.finishes, candidates.goes_on = ends, goes


def prune(candidates: Candidates, options: SelectOptions) -> None:
    """Drop candidates that would go on, by the thresholds of the algorithm."""
    score, goes_on = candidates.score, candidates.goes_on
    if options.margin is not None:
        is_held = options.finishing == Finishing.HELD
        rivals = goes_on | candidates.finishes if is_held else goes_on
        best = torch.where(rivals, score, -INF).amax(1)
        if options.best_finished is not None:
            best = torch.maximum(best, options.best_finished.to(best.dtype))
        candidates.goes_on = goes_on & is_within(score, best, options.margin)
    if options.local_margin is not None:
        is_row = goes_on & ~candidates.is_held
        best = torch.where(is_row, candidates.log_prob, -INF).amax(1)
        is_near = is_within(candidates.log_prob, best, options.local_margin)
        candidates.goes_on = candidates.goes_on & (is_near | candidates.is_held)


def is_within(value: Tensor, best: Tensor, margin: Tensor) -> Tensor:
    """Whether values [A, N] are above the floors of their lines; a negative margin lets those at it in."""
    floor = (best - margin.abs().to(best.dtype))[:, None]
    return torch.where((margin < 0)[:, None], value >= floor, value > floor)


def packed(candidates: Candidates, has_nan: Tensor | None, capacity: int) -> Survivors:
    """The survivors [A, C]: those that finish, then those that go on."""
    finishes, goes_on = candidates.finishes, candidates.goes_on
    if has_nan is not None:
        finishes, goes_on = finishes & ~has_nan[:, None], goes_on & ~has_nan[:, None]
    # 2, 1 and 0 for those that are none
    key = finishes.to(torch.int8).mul_(2).add_(goes_on)
    key, order = key.sort(dim=1, descending=True, stable=True)
    order, is_none = order[:, :capacity], key[:, :capacity] == 0
    listing, place = candidates.listing, candidates.place
    assert place is not None
    place = place.gather(1, order)
    missing = capacity - order.shape[1]

    def column(values: Tensor, fill: float) -> Tensor:
        values = values.masked_fill_(is_none, fill)
        return pad(values, (0, missing), value=fill) if missing else values

    entry = place.div(listing.per_row, rounding_mode="floor").to(INT)
    return Survivors(
        token=column(listing.token.gather(1, place), -1),
        parent=column(entry, -1),
        score=column(candidates.score.gather(1, order), -INF),
        log_prob=column(listing.log_prob.gather(1, place), -INF),
        count=(key > 0).sum(1, dtype=INT),
        num_finished=finishes.sum(1, dtype=INT),
        has_nan=torch.zeros_like(is_none[:, 0]) if has_nan is None else has_nan,
    )
