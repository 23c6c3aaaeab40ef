"""The step of a `pybeam.rule`: all candidates of a step as arrays, and the survivors that the rule leaves.

The kernel `select` lists the best continuations of each row, so that log-probabilities, ties and tokens are
those of every other search, bit by bit. All that follows is plain torch on arrays [A, N] of A beams. A small
step costs as much as it has operations, so each is left out where it would change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pybeam.backends.tensor_beams import Select
from pybeam.contracts import MAX_WIDTH, Finishing, SelectOptions, Survivors
from pybeam.models.rows import Rows

INF = float("inf")
INT = torch.int32


class Listing(NamedTuple):
    """The continuations of all rows of a step, M of each of E entries, in the order of entries and ranks."""

    token: Tensor  # [A, E * M] int32
    log_prob: Tensor  # [A, E * M] float32
    is_eos: Tensor  # [A, E * M] bool
    is_held: Tensor  # [A, E * M] bool
    row: Tensor  # [A, E] int64, of each entry
    per_row: int  # M


@dataclass(eq=False)
class Candidates:
    """The candidates of a step, which may continue its A beams: a line of N for each.

    At the moment `score` the candidates of a beam's first row come first, best first, then those of its
    second row. At the moment `finish` the best one comes first. Lines have places that are empty: their
    `keep` is False, their score is -inf, and their token is -1.

    Attributes:
        score: [A, N] float32, the accumulated score, which ranks. Yours to change at `score`, but for what is
            held. A change at `finish` is lost.
        keep: [A, N] bool, whether the candidate may survive. Yours to change at `score`.
        finishes: [A, N] bool, whether it finishes in this step. Yours to change at `finish`.
        goes_on: [A, N] bool, whether it is in the next beam. Yours to change at `finish`.
    """

    score: Tensor
    keep: Tensor
    finishes: Tensor
    goes_on: Tensor
    listing: Listing
    place: Tensor | None  # [A, N] int64, of each in the listing; None: they stand as there

    def _listed(self, values: Tensor) -> Tensor:
        return values if self.place is None else values.gather(1, self.place)

    @cached_property
    def log_prob(self) -> Tensor:
        """[A, N] float32, that of the last token, as the processors have left it."""
        return self._listed(self.listing.log_prob)

    @cached_property
    def token(self) -> Tensor:
        """[A, N] int32, the last token."""
        return self._listed(self.listing.token)

    @cached_property
    def is_eos(self) -> Tensor:
        """[A, N] bool, whether the last token ends the hypothesis."""
        return self._listed(self.listing.is_eos)

    @cached_property
    def is_held(self) -> Tensor:
        """[A, N] bool, whether it ended in an earlier step and is held in the beam, with log_prob 0."""
        return self._listed(self.listing.is_held)

    @cached_property
    def _place(self) -> Tensor:
        if self.place is not None:
            return self.place
        return numbers(self.score.shape[1], self.score.device).long().expand(self.score.shape)

    @cached_property
    def sibling_rank(self) -> Tensor:
        """[A, N] int32, how many continuations of the same row have a larger log_prob.

        Equal ones count by their order. Banned tokens do not count.
        """
        return (self._place % self.listing.per_row).to(INT)

    @cached_property
    def entry(self) -> Tensor:
        """[A, N] int32, the entry of the beam that it continues."""
        return self._place.div(self.listing.per_row, rounding_mode="floor").to(INT)

    @cached_property
    def row(self) -> Tensor:
        """[A, N] int64, the row of the step that it continues, as in `pybeam.models.Rows`; -1: none."""
        row = self.listing.row.gather(1, self.entry.long())
        return row.masked_fill(~self.keep | self.is_held, -1)


Hook = Callable[[Candidates], None]


class Moments(NamedTuple):
    """The hooks of a rule in one step, and the beams for which they count."""

    score: Hook | None
    finish: Hook | None
    acts: Tensor | None  # [A, 1] bool, beams where it does; None: all
    siblings: int | None  # continuations of a row that are candidates; None: as many as can survive


# those of `Select`, and two more
def ruled_select(
    select: Select,
    rows: Rows,
    moments: Moments,
    logits: Tensor,
    score: Tensor,
    offset: Tensor,
    width: Tensor,
    options: SelectOptions,
) -> Survivors:
    """`select` of a backend, with the hooks of a rule between its parts."""
    if not logits.shape[0]:
        return select(logits, score, offset, width, options)
    given = Given(select, rows, logits, score, offset, width, options)
    candidates, has_nan = listed(given, moments.siblings)
    if moments.score is not None:
        candidates = scored(candidates, moments.score, moments.acts)
    candidates = ranked(candidates, options.most_candidates)
    divide(candidates, width[:, None], options)
    if moments.finish is not None:
        finish(candidates, moments.finish, moments.acts, width[:, None], options)
    prune(candidates, options)
    return packed(candidates, has_nan, options.capacity)


@lru_cache(maxsize=256)
def numbers(n: int, device: torch.device) -> Tensor:
    """0 to n - 1, [n] int32. Nobody may change them."""
    return torch.arange(n, dtype=INT, device=device)


class Given(NamedTuple):
    """The arguments of a `select`, and its rows."""

    select: Select
    rows: Rows
    logits: Tensor  # [R, V]
    score: Tensor  # [B]
    offset: Tensor  # [A + 1]
    width: Tensor  # [A]
    options: SelectOptions

    @property
    def most_entries(self) -> int:
        """Entries of the largest beam; on a GPU as many as a beam has room for."""
        if self.width.numel() == 1:
            return self.score.numel()
        if self.logits.device.type == "cpu":
            return max(1, int(self.offset.diff().max()))
        assert self.rows.beam_score is not None
        return self.rows.beam_score.shape[1]

    def of_rows(self, values: Tensor | None) -> Tensor | None:
        """The values [R] of the beams of all rows, of values [A]."""
        if values is None:
            return None
        number = numbers(self.logits.shape[0], self.logits.device)
        beam = torch.searchsorted(self.rows.offset[1:], number, right=True)
        return values.index_select(0, beam.clamp(max=self.width.numel() - 1))

    def continuations(self, siblings: int | None) -> Survivors:
        """The best M continuations of each row [R, M], best first; every row is a beam of its own."""
        options, (num_rows, vocab_size) = self.options, self.logits.shape
        most = options.most_places + len(options.eos_ids) if siblings is None else siblings
        own = SelectOptions(
            min(most, vocab_size, MAX_WIDTH),
            options.eos_ids,
            normalise=options.normalise,
            forced=self.of_rows(options.forced),
            ban_eos=self.of_rows(options.ban_eos),
        )
        offset = numbers(num_rows + 1, self.logits.device)
        score = self.score.new_zeros(num_rows)
        return self.select(self.logits, score, offset, offset[1:] * 0 + own.capacity, own)


def listed(given: Given, siblings: int | None) -> tuple[Candidates, Tensor | None]:
    """All candidates [A, E * M] of beams with E entries, and which beams [A] have a NaN; None: none has.

    A line has as many as its own beam allows, whatever the others are.
    """
    options, device = given.options, given.logits.device
    found, number = given.continuations(siblings), numbers(given.most_entries, device)
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
    if not float(score.amax()) < INF:
        raise ValueError(
            "a rule must leave scores that are numbers or -inf, but made a NaN or +inf; is one of its "
            "options infinite?"
        )
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


def ranked(candidates: Candidates, most: int) -> Candidates:
    """The best `most` candidates of each beam that are kept, best first.

    Ties stay in the order of rows, and of the tokens of a row.
    """
    key = candidates.score.masked_fill(~candidates.keep, -INF)
    score, place = key.sort(dim=1, descending=True, stable=True)
    score, place = score[:, :most], place[:, :most]
    keep = score > -INF
    return Candidates(score, keep, keep, keep, candidates.listing, place)


def divide(candidates: Candidates, width: Tensor, options: SelectOptions) -> None:
    """Say which of the ranked candidates finish and which go on, by the algorithm's finishing rule."""
    ends, keep = candidates.is_eos, candidates.keep
    rank = numbers(ends.shape[1], ends.device)
    is_within = keep & (rank < width)
    if options.finishing == Finishing.REFILL:
        is_seen = keep & (rank < (1 + len(options.eos_ids)) * width) & ~ends
        candidates.finishes = is_within & ends
        candidates.goes_on = is_seen & (is_seen.cumsum(1) <= width)
        return
    if options.finishing == Finishing.HELD:
        ends = ends.cumprod(1).bool()
    elif options.finishing == Finishing.NONE:
        ends = torch.zeros_like(ends)
    candidates.finishes, candidates.goes_on = is_within & ends, is_within & ~ends


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
    if acts is not None:
        ends, goes = torch.where(acts, ends, finishes), torch.where(acts, goes, goes_on)
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
