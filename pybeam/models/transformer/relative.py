"""Biases of attention scores for each distance between a row and a cell: T5's buckets, Bloom's slopes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class RelativePositions:
    """How T5 puts distances into buckets, each with a bias per head; see `bucket_of`."""

    num_buckets: int
    max_distance: int  # from here on, distances share a bucket


class RelativeBias(NamedTuple):
    """The biases of a layer. Distances beyond the table have those at its end."""

    table: Tensor  # [H, L] float32
    origin: int  # the column for distance 0

    @classmethod
    def of_buckets(
        cls, weight: Tensor, relative: RelativePositions, is_causal: bool
    ) -> RelativeBias:
        """Expand the biases of buckets [num_buckets, H] by distance, as far as buckets differ."""
        furthest = relative.max_distance
        first = 0 if is_causal else -furthest
        distance = torch.arange(first, furthest + 1)
        bucket = bucket_of(distance, relative, is_causal).to(weight.device)
        return cls(weight[bucket].t().float().contiguous(), -first)

    @classmethod
    def of_slopes(cls, num_heads: int, num_positions: int, device: torch.device) -> RelativeBias:
        """Make biases ``-slope * distance`` for distances of a causal decoder.

        For a power of two heads, slopes are ``2 ** (-8 (h + 1) / H)``. For another number they are those of
        the power below, and behind them every other slope of the power above.

        See Press et al. 2022 (arXiv:2108.12409), section 3.
        """
        power = 1 << (num_heads.bit_length() - 1)

        def slopes(num: int) -> list[float]:
            return [2.0 ** (-8 * (h + 1) / num) for h in range(num)]

        own = (slopes(power) + slopes(2 * power)[::2])[:num_heads]
        distance = torch.arange(num_positions, dtype=torch.float32)
        return cls((-torch.tensor(own)[:, None] * distance).to(device), 0)

    def causal_mask(self, length: int) -> Tensor:
        """Return [H, length, length]: the biases, and -inf ahead of each row."""
        place = torch.arange(length, device=self.table.device)
        back = place[:, None] - place
        column = (back + self.origin).clamp(0, self.table.shape[1] - 1)
        return self.table[:, column].masked_fill(back < 0, -math.inf)


def bucket_of(distance: Tensor, relative: RelativePositions, is_causal: bool) -> Tensor:
    """Return the bucket of each distance, the row's position minus the cell's.

    With n buckets for a direction, a distance d below n / 2 has its own. Others share
    ``n / 2 + floor(log(2 d / n) / log(2 max_distance / n) * n / 2)``, at most n - 1. Without causality the
    buckets are halved: the second half is for cells ahead of the row.

    See Raffel et al. 2020 (arXiv:1910.10683), section 2.1.
    """
    num, first = relative.num_buckets, torch.zeros_like(distance)
    if is_causal:
        distance = distance.clamp(min=0)
    else:
        num //= 2
        first = num * (distance < 0)
        distance = distance.abs()
    exact = num // 2
    # float32, as the models were trained
    ratio = torch.log(distance.float() / exact) / math.log(relative.max_distance / exact)
    shared = exact + (ratio.clamp(min=0) * (num - exact)).long()
    return first + torch.where(distance < exact, distance, shared.clamp(max=num - 1))
