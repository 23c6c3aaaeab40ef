"""The step of a `pybeam.rule`: all candidates of a step as arrays, and the survivors that the rule leaves.

The kernel `select` lists the best continuations of each row, so that log-probabilities, ties and tokens are
those of every other search, bit by bit. All that follows is plain torch on arrays [A, N] of A beams. Nothing
is read back on a GPU, and no size depends on data there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends.tensor_beams import Select
from pybeam.contracts import MAX_WIDTH, Finishing, SelectOptions, Survivors
from pybeam.models.rows import Rows

INF = float("inf")
INT = torch.int32


@dataclass(eq=False)
class Candidates:
    """The candidates of a step, which may continue its A beams: a line of N for each.

    At the moment `score` the candidates of a beam's first row come first, best first, then those of its
    second row. At the moment `finish` the best one comes first. Lines have places that are empty: their
    `keep` is False, their score is -inf, and their token is -1.

    Attributes:
        score: [A, N] float32, the accumulated score, which ranks. Yours to change at `score`, but for what is
            held.
        keep: [A, N] bool, whether the candidate may survive. Yours to change at `score`.
        log_prob: [A, N] float32, that of the last token, as the processors have left it.
        token: [A, N] int32, the last token.
        is_eos: [A, N] bool, whether that token ends the hypothesis.
        is_held: [A, N] bool, whether it ended in an earlier step and is held in the beam, with log_prob 0.
        sibling_rank: [A, N] int32, how many continuations of the same row have a larger log_prob; equal ones
            count by their order. Banned tokens do not count.
        entry: [A, N] int32, the entry of the beam that it continues.
        row: [A, N] int64, the row of the step that it continues, as in `pybeam.models.Rows`; -1: none.
        finishes: [A, N] bool, whether it finishes in this step. Yours to change at `finish`.
        goes_on: [A, N] bool, whether it is in the next beam. Yours to change at `finish`.
    """

    score: Tensor
    keep: Tensor
    log_prob: Tensor
    token: Tensor
    is_eos: Tensor
    is_held: Tensor
    sibling_rank: Tensor
    entry: Tensor
    row: Tensor
    finishes: Tensor
    goes_on: Tensor

    def at(self, place: Tensor) -> Candidates:
        """Return the candidates at these places [A, n] of their lines."""
        fields = dataclasses.fields(self)
        return Candidates(*[getattr(self, one.name).gather(1, place) for one in fields])


Hook = Callable[[Candidates], None]


class Moments(NamedTuple):
    """The hooks of a rule in one step, and the beams for which they count."""

    score: Hook | None
    finish: Hook | None
    acts: Tensor  # [A, 1] bool, beams where it does
    siblings: int | None  # continuations of a row that are candidates; None: as many as can survive


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
    def beam(self) -> Tensor:
        """The beam [R] of each row. That of padding means nothing."""
        number = torch.arange(self.logits.shape[0], dtype=INT, device=self.logits.device)
        beam = torch.searchsorted(self.rows.offset[1:], number, right=True)
        return beam.clamp(max=self.width.numel() - 1)

    def rows_of_entries(self, beam: Tensor) -> Tensor:
        """The row [A, E] int64 of each entry; -1: there is none."""
        offset, entry = self.rows.offset, self.rows.entry.long()
        num_beams, device = self.width.numel(), offset.device
        assert self.rows.beam_score is not None
        most = self.rows.beam_score.shape[1]
        if device.type == "cpu":
            most = max(1, int(self.offset.diff().max()))
        number = torch.arange(entry.numel(), device=device)
        # padding goes to a column that is cut off
        entry = torch.where(number < offset[-1], entry, most)
        rows = torch.full((num_beams, most + 1), -1, device=device)
        return rows.index_put_((beam, entry), number)[:, :most]

    def at(self, beam: Tensor, entry: Tensor) -> Tensor:
        """The scores of these entries of these beams."""
        place = self.offset[:-1].long()[beam] + entry
        return self.score[place.clamp(max=self.score.numel() - 1)]


def continuations(given: Given, beam: Tensor, siblings: int | None) -> Survivors:
    """The best M continuations of each row [R, M], best first; every row is a beam of its own."""
    options, device = given.options, given.logits.device

    def of_row(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.index_select(0, beam)

    most = options.most_places + len(options.eos_ids) if siblings is None else siblings
    own = SelectOptions(
        min(most, given.logits.shape[1], MAX_WIDTH),
        options.eos_ids,
        normalise=options.normalise,
        forced=of_row(options.forced),
        ban_eos=of_row(options.ban_eos),
    )
    offset = torch.arange(beam.numel() + 1, dtype=INT, device=device)
    score = given.at(beam, given.rows.entry.long())
    return given.select(given.logits, score, offset, torch.full_like(offset[1:], own.capacity), own)


def listed(given: Given, siblings: int | None) -> tuple[Candidates, Tensor]:
    """All candidates [A, E * M] of beams with E entries, and which beams [A] have a NaN.

    A line has as many as its own beam allows, whatever the others are.
    """
    options, num_eos = given.options, len(given.options.eos_ids)
    beam = given.beam
    found, row = continuations(given, beam, siblings), given.rows_of_entries(beam)
    is_row, at = row >= 0, row.clamp(min=0)
    token, score, log_prob = found.token[at], found.score[at], found.log_prob[at]  # [A, E, M]
    number = torch.arange(max(token.shape[1:]), dtype=INT, device=token.device)
    entry, rank = number[: token.shape[1], None], number[: token.shape[2]]
    limit = given.width + num_eos if siblings is None else torch.full_like(given.width, siblings)
    if options.max_candidates is not None:
        limit = torch.minimum(limit, options.max_candidates)
    is_there = is_row[..., None] & (token >= 0) & (rank < limit[:, None, None])
    is_held = torch.zeros_like(is_there)
    if options.is_ended is not None:
        is_held[..., 0] = (entry[:, 0] < given.offset.diff()[:, None]) & ~is_row
        is_there |= is_held
        beams = torch.arange(len(row), device=row.device)[:, None]
        held_score = given.at(beams, entry[:, 0].long())[..., None].to(score.dtype)
        score = torch.where(is_held, held_score, score)
        token = token.masked_fill(is_held, options.eos_ids[0])
        log_prob = log_prob.masked_fill(is_held, 0.0)
    is_there &= score > -INF
    eos_ids = torch.tensor(options.eos_ids, dtype=INT, device=token.device)
    none = torch.zeros_like(is_there)
    lines = (
        score.masked_fill(~is_there, -INF),
        is_there,
        log_prob.masked_fill(~is_there, -INF),
        token.masked_fill(~is_there, -1),
        torch.isin(token, eos_ids) & is_there,
        is_held & is_there,
        rank.expand(token.shape),
        entry.expand(token.shape),
        row[..., None].expand(token.shape).masked_fill(~is_there | is_held, -1),
        none,
        none,
    )
    has_nan = (found.has_nan[at] & is_row).any(1)
    return Candidates(*[line.flatten(1) for line in lines]), has_nan


def scored(candidates: Candidates, hook: Hook, acts: Tensor) -> Candidates:
    """The candidates with the scores and the `keep` that a hook gives them where it `acts` [A, 1].

    The log-prob of the last token changes as the score does, so that a score is the sum of its log-probs.
    """
    before = dataclasses.replace(candidates)
    candidates.score, candidates.keep = before.score.clone(), before.keep.clone()
    hook(candidates)
    check_like("`candidates.score`", candidates.score, before.score)
    check_like("`candidates.keep`", candidates.keep, before.keep)
    score = torch.where(acts & before.keep & ~before.is_held, candidates.score, before.score)
    if bool((score.isnan() | (score == INF)).any()):
        raise ValueError(
            "a rule must leave scores that are numbers or -inf, but made a NaN or +inf; empty places have "
            "-inf, which -inf - -inf makes a NaN"
        )
    changes = score != before.score
    gain = torch.where(changes, before.log_prob + (score - before.score), before.log_prob)
    keep = before.keep & torch.where(acts, candidates.keep, True) & (score > -INF)
    return dataclasses.replace(before, score=score, log_prob=gain, keep=keep)


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
    key = torch.where(candidates.keep, candidates.score, -INF)
    order = key.sort(dim=1, descending=True, stable=True).indices[:, :most]
    return candidates.at(order)


def divide(candidates: Candidates, width: Tensor, options: SelectOptions) -> None:
    """Say which of the ranked candidates finish and which go on, by the algorithm's finishing rule."""
    ends, keep = candidates.is_eos, candidates.keep
    rank = torch.arange(ends.shape[1], dtype=INT, device=ends.device)
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
    candidates: Candidates, hook: Hook, acts: Tensor, width: Tensor, options: SelectOptions
) -> None:
    """Let a hook say which candidates finish and which go on, where it `acts` [A, 1].

    Only what ends may finish, and only where ended hypotheses are held may one go on. There are `width`
    places for each, or for both together where finished hypotheses cost places: the first ones get them.
    """
    finishes, goes_on = candidates.finishes, candidates.goes_on
    candidates.finishes, candidates.goes_on = finishes.clone(), goes_on.clone()
    hook(candidates)
    for name in ("finishes", "goes_on"):
        check_like(f"`candidates.{name}`", getattr(candidates, name), finishes)
    ends, goes = candidates.finishes & candidates.is_eos & candidates.keep, candidates.goes_on
    goes = goes & candidates.keep & ~ends
    if options.finishing != Finishing.HELD:
        goes &= ~candidates.is_eos
    if options.finishing == Finishing.REFILL:
        ends &= ends.cumsum(1) <= width
        goes &= goes.cumsum(1) <= width
    else:
        is_one = (ends | goes).cumsum(1) <= width
        ends, goes = ends & is_one, goes & is_one
    candidates.finishes = torch.where(acts, ends, finishes)
    candidates.goes_on = torch.where(acts, goes, goes_on)


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


def packed(candidates: Candidates, has_nan: Tensor, capacity: int) -> Survivors:
    """The survivors [A, C]: those that finish, then those that go on."""
    finishes = candidates.finishes & ~has_nan[:, None]
    goes_on = candidates.goes_on & ~has_nan[:, None]
    key = torch.where(finishes, 0, torch.where(goes_on, 1, 2))
    place = key.sort(dim=1, stable=True).indices[:, :capacity]
    count = (key < 2).sum(1, dtype=INT)
    is_one = torch.arange(place.shape[1], dtype=INT, device=place.device) < count[:, None]

    def column(values: Tensor, fill: float) -> Tensor:
        values = values.gather(1, place).masked_fill(~is_one, fill)
        missing = capacity - values.shape[1]
        return values if not missing else torch.nn.functional.pad(values, (0, missing), value=fill)

    return Survivors(
        token=column(candidates.token, -1),
        parent=column(candidates.entry, -1),
        score=column(candidates.score, -INF),
        log_prob=column(candidates.log_prob, -INF),
        count=count,
        num_finished=finishes.sum(1, dtype=INT),
        has_nan=has_nan,
    )
