"""The rates of a CPU, as torch reaches them: how fast it reads, and how fast it multiplies."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

from pybeam.inspect.work import Work

# rows and columns of the matrices whose product gives the rate
SIDE = 512
# other dtypes are widened before they are multiplied
ARITHMETIC = ("float32", "bfloat16", "int8")
# a call that reads less costs more than its reading
LEAST_BYTES = 1 << 18
REPEATS = 50
# after so long nothing is repeated: torch's product of bytes may lack instructions for them, and be slow
ENOUGH_SECONDS = 0.3


def bandwidth(num_bytes: float) -> float:
    """Bytes a second of reading so many bytes again and again, so that they come from the same cache.

    The largest of all numbers is sought: nothing of torch's reads faster.
    """
    numbers = torch.ones(int(num_bytes) // 4)
    return numbers.nbytes / _least(numbers.amax)


def multiply_rate(dtype: str) -> float:
    """Multiply-adds a second of torch's product of two square matrices, at least those of float32.

    Any numbers can be widened to float32, and torch has no fast product of bytes or of bfloat16 for a CPU
    with AVX2 alone.
    """
    ones = torch.ones(SIDE, SIDE, dtype=getattr(torch, dtype))
    product = torch._int_mm if dtype == "int8" else torch.mm
    rate = SIDE**3 / _least(lambda: product(ones, ones))
    return rate if dtype == "float32" else max(rate, multiply_rate("float32"))


def seconds(work: Work, held_bytes: float, dtype: str, threads: int) -> float:
    """The least that this work takes, whose inputs stay where so many bytes stay."""
    rate = _known_rate(dtype if dtype in ARITHMETIC else "float32", threads)
    return max(work.num_bytes / _known_bandwidth(int(held_bytes), threads), work.flop / 2 / rate)


@cache
def _known_bandwidth(num_bytes: int, threads: int) -> float:
    """`bandwidth` of so many bytes, measured once; `threads` are those of torch."""
    return bandwidth(max(LEAST_BYTES, num_bytes))


@cache
def _known_rate(dtype: str, threads: int) -> float:
    """`multiply_rate`, measured once."""
    return multiply_rate(dtype)


def _least(run: Callable[[], object]) -> float:
    """Seconds of the fastest run."""
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < ENOUGH_SECONDS:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
