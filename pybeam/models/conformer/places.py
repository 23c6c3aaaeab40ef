"""Where the rows of several recordings stand, and what they see.

Rows [n] of recordings stand one after another. Rows of none may stand behind them, so that sizes come again:
they see zeros or rows of others, and nobody sees them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from pybeam.backends.pinned import padded
from pybeam.models.conformer.config import KERNEL, STRIDE, ConformerConfig

# of a layer's scores by distance [H, A, T, 2 T - 1], and rows of the tables [A, T] of sources
MOST_SCORES, MOST_ROWS = 1 << 26, 1 << 13


class Sizes(NamedTuple):
    """How many recordings and positions there are, or are made of them, and the most of one recording."""

    num_sources: int  # A
    num_positions: int  # n
    longest: int  # T

    def fits(self, num_heads: int) -> bool:
        """Whether so many are computed together."""
        num_rows = self.num_sources * self.longest
        return num_rows <= MOST_ROWS and num_heads * num_rows * 2 * self.longest <= MOST_SCORES


class Places(NamedTuple):
    """Rows that are read, all int32. The number behind the last row stands for zeros."""

    first: Tensor  # [., 3] frames that each place behind the first convolution sees
    second: Tensor  # [n, 3] places behind it that each position sees
    line: Tensor  # [n + (A + 1) (k // 2)] positions in a line, zeros before, between and behind recordings
    place: Tensor  # [n] where in that line, less k // 2, each position is
    table: Tensor  # [A, T] positions of each recording; its last one stands behind them
    cell: Tensor  # [n] where in the table each position is
    length: Tensor  # [A]


def places_of(
    config: ConformerConfig, frames: Sequence[int], sizes: Sizes | None = None
) -> list[np.ndarray]:
    """Return the numbers of `Places` for recordings of so many frames; None: as many as there are."""
    frame = np.array(frames, dtype=np.int64)  # [A]
    length = np.array([config.num_positions(num) for num in frames], dtype=np.int64)
    after = (frame + config.right_padding - KERNEL) // STRIDE + 1
    after[length == 0] = 0
    if sizes is None:
        sizes = Sizes(len(frame), int(length.sum()), int(length.max(initial=0)))
        num_frames, num_after = int(frame.sum()), int(after.sum())
    else:
        num_frames, num_after = (
            num_frames_of(sizes),
            2 * sizes.num_positions + 2 * sizes.num_sources,
        )
    source, position = _numbered(length)
    half, end = config.kernel_size // 2, np.cumsum(length)
    line = np.full(sizes.num_positions + half * (sizes.num_sources + 1), sizes.num_positions)
    place = np.arange(len(source)) + half * source
    line[place + half] = np.arange(len(source))
    own = np.minimum(np.arange(sizes.longest), length[:, None] - 1)  # [A, T]
    table = np.clip((end - length)[:, None] + own, 0, max(0, len(source) - 1))
    return [
        _windows(frame, after, num_frames, num_after),
        _windows(after, length, num_after, sizes.num_positions),
        line,
        padded(place, sizes.num_positions),
        padded(table, sizes.num_sources, sizes.longest),
        padded(source * sizes.longest + position, sizes.num_positions),
        padded(length, sizes.num_sources),
    ]


def num_frames_of(sizes: Sizes) -> int:
    """Return the most frames of so many recordings with so many positions."""
    return 4 * sizes.num_positions + 6 * sizes.num_sources


def together(lengths: Sequence[int], num_heads: int) -> Iterator[slice]:
    """Yield slices of neighbours that fit, or of one that is too long."""
    start = 0
    for i in range(1, len(lengths) + 1):
        own = lengths[start : i + 1]
        if i == len(lengths) or not Sizes(len(own), sum(own), max(own)).fits(num_heads):
            yield slice(start, i)
            start = i


def _numbered(length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the source [n] of each row, and its place there."""
    source = np.repeat(np.arange(len(length)), length)
    return source, np.arange(len(source)) - (np.cumsum(length) - length)[source]


def _windows(before: np.ndarray, after: np.ndarray, nothing: int, num: int) -> np.ndarray:
    """Return the rows [num, 3] that each place behind a convolution sees of so many rows before it."""
    source, place = _numbered(after)
    end = np.cumsum(before)
    row = ((end - before)[source] + STRIDE * place)[:, None] + np.arange(KERNEL)
    return padded(np.where(row < end[source, None], row, nothing), num, KERNEL, fill=nothing)
