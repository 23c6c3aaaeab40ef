"""The kernel of `beam_plan`: who moves."""

import triton.language as tl

from pybeam.triton_kernels.beam.columns import (
    INT_DEPTH,
    INT_NUM_ROWS,
    INT_REASON,
    INT_WAITED,
    NUM_INTS,
    STOP_RUNNING,
)
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

# sources that one is compared with at a time
TILE_SOURCES = tl.constexpr(32)
MAX_KEY = tl.constexpr(2**31 - 1)
MIN_KEY = tl.constexpr(-(2**31))


@one_variant(anywhere=["p_slot", "p_key", "p_rows", "p_waited", "p_moved", "p_moved_rows"])
def plan_kernel(
    p_ints,
    p_slot,
    p_key,
    p_rows,
    p_waited,
    p_moved,
    p_moved_rows,
    num_sources,
    most_rows,
    max_wait,
    ORDER: tl.constexpr,
    ONLY_LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for all sources. The rows of those that come first are counted, not sorted."""
    await_kernels()
    o_source = tl.arange(0, BLOCK)
    least, num_due = MAX_KEY, 0
    if ONLY_LEAST:
        for start in range(0, num_sources, BLOCK):
            m_source = start + o_source < num_sources
            i_slot = tl.load(p_slot + start + o_source, mask=m_source, other=0).to(tl.int64)
            p_line = p_ints + i_slot * NUM_INTS
            reason = tl.load(p_line + INT_REASON, mask=m_source, other=0)
            num_rows = tl.load(p_line + INT_NUM_ROWS, mask=m_source, other=0)
            depth = tl.load(p_line + INT_DEPTH, mask=m_source, other=0)
            b_depth = tl.where((reason == STOP_RUNNING) & (num_rows > 0), depth, MAX_KEY)
            least = tl.minimum(least, tl.min(b_depth, 0))
    for start in range(0, num_sources, BLOCK):
        m_source = start + o_source < num_sources
        i_slot = tl.load(p_slot + start + o_source, mask=m_source, other=0).to(tl.int64)
        p_line = p_ints + i_slot * NUM_INTS
        reason = tl.load(p_line + INT_REASON, mask=m_source, other=0)
        num_rows = tl.load(p_line + INT_NUM_ROWS, mask=m_source, other=0)
        depth = tl.load(p_line + INT_DEPTH, mask=m_source, other=0)
        waited = tl.load(p_line + INT_WAITED, mask=m_source, other=0)
        num_rows = tl.where(reason == STOP_RUNNING, num_rows, 0)
        is_due = num_rows > 0
        if ONLY_LEAST:
            is_due &= (depth == least) | (waited >= max_wait)
        num_due += tl.sum(tl.where(is_due, num_rows, 0), 0)
        b_key = -waited if ORDER == 0 else ORDER * depth
        b_key = tl.where(waited >= max_wait, MIN_KEY, b_key)
        tl.store(p_key + start + o_source, tl.where(is_due, b_key, MAX_KEY), mask=m_source)
        tl.store(p_rows + start + o_source, num_rows, mask=m_source)
        tl.store(p_waited + start + o_source, waited, mask=m_source)
    # every thread sees all keys
    tl.debug_barrier()
    # where there is room for all nobody comes first
    num_compared = tl.where(num_due > most_rows, num_sources, 0)
    for start in range(0, num_sources, BLOCK):
        o_one = start + o_source
        m_source = o_one < num_sources
        b_key = tl.load(p_key + o_one, mask=m_source, other=MAX_KEY)
        num_rows = tl.load(p_rows + o_one, mask=m_source, other=0)
        b_before = tl.zeros([BLOCK], tl.int32)
        for other in range(0, num_compared, TILE_SOURCES):
            o_other = other + tl.arange(0, TILE_SOURCES)
            b_other = tl.load(p_key + o_other, mask=o_other < num_sources, other=MAX_KEY)[None, :]
            b_rows = tl.load(p_rows + o_other, mask=o_other < num_sources, other=0)[None, :]
            is_tied = (b_other == b_key[:, None]) & (o_other[None, :] < o_one[:, None])
            is_before = (b_other < b_key[:, None]) | is_tied
            b_before += tl.sum(tl.where(is_before, b_rows, 0), 1)
        moves = (b_key < MAX_KEY) & (b_before + num_rows <= most_rows)
        slot = tl.load(p_slot + o_one, mask=m_source, other=0)
        tl.store(p_moved + o_one, tl.where(moves, slot, 0), mask=m_source)
        tl.store(p_moved_rows + o_one, tl.where(moves, num_rows, 0), mask=m_source)
        waited = tl.load(p_waited + o_one, mask=m_source, other=0)
        p_line = p_ints + slot.to(tl.int64) * NUM_INTS
        tl.store(p_line + INT_WAITED, tl.where(moves, 0, waited + 1), mask=m_source)
