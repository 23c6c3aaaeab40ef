"""Who moves: each program of `read_kernel` reads some numbers of all sources, and finds the same ones."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.beam.columns import (
    INT_DEPTH,
    INT_NUM_ENTRIES,
    INT_NUM_ROWS,
    INT_REASON,
    INT_TARGET_LENGTH,
    INT_WAITED,
    NUM_INTS,
    STOP_RUNNING,
)

MAX_KEY = tl.constexpr(2**31 - 1)
MIN_KEY = tl.constexpr(-(2**31))


class Sources(NamedTuple):
    """A number of each source, 0 behind the last one."""

    slot: tl.tensor
    reason: tl.tensor
    num_rows: tl.tensor
    depth: tl.tensor
    waited: tl.tensor
    num_entries: tl.tensor


@triton.jit
def load_sources(p_ints, p_slot, num_sources, num_slots, BLOCK: tl.constexpr):
    o_source = tl.arange(0, BLOCK)
    i_slot = tl.load(p_slot + o_source, mask=o_source < num_sources, other=-1).to(tl.int64)
    m_slot = (i_slot >= 0) & (i_slot < num_slots)
    p_line = p_ints + i_slot * NUM_INTS
    return Sources(
        i_slot,
        tl.load(p_line + INT_REASON, mask=m_slot, other=0),
        tl.load(p_line + INT_NUM_ROWS, mask=m_slot, other=0),
        tl.load(p_line + INT_DEPTH, mask=m_slot, other=0),
        tl.load(p_line + INT_WAITED, mask=m_slot, other=0),
        tl.load(p_line + INT_NUM_ENTRIES, mask=m_slot, other=0),
    )


@triton.jit
def choose(sources, most_rows, max_wait, ORDER: tl.constexpr, ONLY_LEAST: tl.constexpr):
    """Choose the sources that move, as a mask."""
    is_late = sources.waited >= max_wait
    is_due = (sources.reason == STOP_RUNNING) & (sources.num_rows > 0)
    if ONLY_LEAST:
        least = tl.min(tl.where(is_due, sources.depth, MAX_KEY), 0)
        is_due &= (sources.depth == least) | is_late
    b_rows = tl.where(is_due, sources.num_rows, 0)
    if tl.sum(b_rows, 0) > most_rows:
        b_key = -sources.waited if ORDER == 0 else ORDER * sources.depth
        b_key = tl.where(is_due, tl.where(is_late, MIN_KEY, b_key), MAX_KEY)
        is_due &= fits(b_key, b_rows, most_rows)
    return is_due


@triton.jit
def fits(b_key, b_rows, most_rows):
    """Whether there is room for each source and all before it. Those of one key go in order.

    Halving finds the first key at which there is no room for all sources up to it, so nothing is sorted.
    """
    low, high = tl.min(b_key, 0), tl.max(tl.where(b_rows > 0, b_key, MIN_KEY), 0)
    while low < high:
        # the mean, rounded down
        middle = (low & high) + ((low ^ high) >> 1)
        is_enough = tl.sum(tl.where(b_key <= middle, b_rows, 0), 0) > most_rows
        low, high = tl.where(is_enough, low, middle + 1), tl.where(is_enough, middle, high)
    b_tied = tl.where(b_key == low, b_rows, 0)
    room = most_rows - tl.sum(tl.where(b_key < low, b_rows, 0), 0)
    return (b_key < low) | ((b_key == low) & (tl.cumsum(b_tied, 0) <= room))


@triton.jit
def store_waited(beams, sources, b_moves, num_slots):
    """Count how long sources have waited. This program is the last to do so, and no other reads it."""
    tl.store(beams.ints + INT_TARGET_LENGTH, 0)
    m_slot = (sources.slot >= 0) & (sources.slot < num_slots)
    p_waited = beams.ints + sources.slot * NUM_INTS + INT_WAITED
    tl.store(p_waited, tl.where(b_moves, 0, sources.waited + 1), mask=m_slot)
