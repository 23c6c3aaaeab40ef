"""How many rows a step on a GPU has room for: one of few numbers, each of which may have CUDA graphs."""

from __future__ import annotations

# of matrix products
TILE_ROWS = 16


def bucket(size: int) -> int:
    """Return the smallest bucket that holds so many.

    Few rows cost nearly the same, so there is one bucket between a power of two and the next, up to 128. From
    there on buckets are multiples of a tile of rows, and from 512 on there are 16 for every power of two.
    """
    bits = (size - 1).bit_length()
    step = 1 << max(0, bits - 2) if size <= 128 else max(TILE_ROWS, 1 << bits - 5)
    return _multiple(size, step)


def last_bucket(size: int, before: int) -> int:
    """Return a bucket that holds so many when no other source will come.

    Each step may have another size then, which does not come back before another stream ends. So there are 4
    buckets for every power of two, fewer where `bucket` has fewer, and `before`, that of the step before.
    """
    few = _multiple(size, 1 << max(0, (size - 1).bit_length() - 3))
    return max(bucket(size), min(few, before))


def _multiple(size: int, step: int) -> int:
    return -(-size // step) * step
