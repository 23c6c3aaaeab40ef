"""The candidates of a step of a `pybeam.rule` as arrays, and what they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from pybeam.backends.tensor_beams import Select
from pybeam.contracts import MAX_WIDTH, SelectOptions, Survivors
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
        number = numbers(self.score.shape[1], self.score.device, torch.int64)
        return number.expand(self.score.shape)

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


@lru_cache(maxsize=256)
def numbers(n: int, device: torch.device, dtype: torch.dtype = INT) -> Tensor:
    """0 to n - 1, [n]. Nobody may change them."""
    return torch.arange(n, dtype=dtype, device=device)


@lru_cache(maxsize=256)
def filled(n: int, value: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same number [n]. Nobody may change it."""
    return torch.full((n,), value, dtype=dtype, device=device)


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

    def continuations(self, most: int) -> Survivors:
        """The best M continuations of each row [R, M], best first; every row is a beam of its own."""
        options, (num_rows, vocab_size) = self.options, self.logits.shape
        own = SelectOptions(
            min(most, vocab_size, MAX_WIDTH),
            options.eos_ids,
            normalise=options.normalise,
            forced=self.of_rows(options.forced),
            ban_eos=self.of_rows(options.ban_eos),
        )
        device = self.logits.device
        score = filled(num_rows, 0, self.score.dtype, device)
        width = filled(num_rows, own.capacity, INT, device)
        return self.select(self.logits, score, numbers(num_rows + 1, device), width, own)
