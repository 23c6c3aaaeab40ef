"""Rank the candidates of one beam, after all its rows have been read.

A candidate has two keys. The first one holds its score and its parent, the second one its logit and its
token, so that keys order by score, parent, logit and token. Few logits are read again: those of the groups
whose peaks reach a bound that the best candidates of the beam reach.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exp_shifted
from pybeam.triton_kernels.select.keys import EMPTY, index_of, key_of, nth_largest, value_of
from pybeam.triton_kernels.select.options import IS_ENDED, PLAIN, ends
from pybeam.triton_kernels.select.row import BLOCK
from pybeam.triton_kernels.select.slice import DEPTH, LANES, MAX_SLICES

LEAST = tl.constexpr(-3.4028234663852886e38)  # of the finite numbers
STAT = tl.constexpr(4)  # peak, log of the sum, score and bound of a row
ROWS = tl.constexpr(16)  # rows that are handled at once
BLOCK_BINS = tl.constexpr(64)
BIN_PEAKS = tl.constexpr(32)
GROUPS = tl.constexpr(1024)  # that are handled at once
TILE = tl.constexpr(1024)  # candidates that are compared with the best at once
OWN = tl.constexpr(256)  # candidates that find their places at once
OTHERS = tl.constexpr(16)  # that they are compared with at once


class Logits(NamedTuple):
    """The rows of logits, and how a slice is cut into groups."""

    data: tl.tensor
    lead: tl.tensor  # logits before the first row
    row_stride: tl.tensor
    num_columns: tl.tensor
    num_slices: tl.tensor
    num_tiles: tl.tensor  # of a slice


class Scratch(NamedTuple):
    """Scratch memory: pointers."""

    peak: tl.tensor  # [R, num_slices * LANES] of the groups
    group: (
        tl.tensor
    )  # the same shape: the groups of a beam that are read again, where its first row stands
    slice_stat: tl.tensor  # [R, num_slices, 2] peak, and sum of exp
    stat: tl.tensor  # [R, STAT]
    parent: tl.tensor  # [R] entries in their beam
    row_of: tl.tensor  # [B] rows of entries, -1 for held ones
    bin: tl.tensor  # [S, 2 * LIST]
    list: tl.tensor  # [S, 2 * ROOM + 2 * LIST]


class Beam(NamedTuple):
    """One beam: its entries, its rows, and what is wanted of them."""

    begin: tl.tensor
    size: tl.tensor
    first_row: tl.tensor
    num_rows: tl.tensor
    wanted: tl.tensor  # candidates that count
    limit: tl.tensor  # of them, that may be of one row
    forced: tl.tensor
    bans_eos: tl.tensor


@triton.jit
def find_rows(inputs, scratch, beam):
    """Write the row of every entry of a beam, -1 for a held one, and the parent of every row."""
    has_ended = (inputs.given & IS_ENDED) > 0
    row = beam.first_row
    for start in range(0, beam.size, BLOCK):
        o_parent = start + tl.arange(0, BLOCK)
        m_entry = o_parent < beam.size
        p_ended = inputs.is_ended + beam.begin + o_parent
        b_ended = tl.load(p_ended, mask=m_entry & has_ended, other=0).to(tl.int32)
        m_live = m_entry & (b_ended == 0)
        b_row = row + tl.cumsum(m_live.to(tl.int32), 0) - 1
        tl.store(scratch.row_of + beam.begin + o_parent, tl.where(m_live, b_row, -1), mask=m_entry)
        tl.store(scratch.parent + b_row, o_parent, mask=m_live)
        row += tl.sum(m_live.to(tl.int32), 0)
    tl.debug_barrier()


@triton.jit
def combine_slices(inputs, logits, scratch, beam):
    """Write peak, log of the sum and score of every row of a beam; returns whether one has a NaN.

    The log is +inf if no token of the row is a candidate.
    """
    has_nan = beam.begin * 0
    is_off = (beam.limit <= 0) | (beam.forced >= 0)
    o_slice = tl.arange(0, MAX_SLICES)[None, :]
    for start in range(0, beam.num_rows, ROWS):
        o_row = start + tl.arange(0, ROWS)
        m_row = o_row < beam.num_rows
        b_row = (beam.first_row + o_row).to(tl.int64)
        p_slice = scratch.slice_stat + 2 * (b_row[:, None] * logits.num_slices + o_slice)
        m_slice = m_row[:, None] & (o_slice < logits.num_slices)
        b_slice_peak = tl.load(p_slice, mask=m_slice, other=-float("inf"), cache_modifier=".cg")
        b_sum = tl.load(p_slice + 1, mask=m_slice, other=0.0, cache_modifier=".cg")
        b_peak = tl.max(b_slice_peak, 1)
        b_sum = tl.sum(b_sum * exp_shifted(b_slice_peak, b_peak[:, None]), 1)
        has_nan |= tl.max((m_row & (b_sum != b_sum)).to(tl.int32), 0)
        # a row of -inf has no candidate, whatever its sum
        m_empty = b_peak == -float("inf")
        m_plain = ((inputs.given & PLAIN) > 0) | m_empty
        b_log_sum = tl.where(m_plain, 0.0, tl.log(tl.where(m_empty, 1.0, b_sum)))
        b_log_sum = tl.where(is_off, float("inf"), b_log_sum)
        b_parent = tl.load(scratch.parent + b_row, mask=m_row, other=0)
        b_score = tl.load(inputs.score + beam.begin + b_parent, mask=m_row, other=0.0)
        p_stat = scratch.stat + b_row * STAT
        tl.store(p_stat, tl.where(m_plain, 0.0, b_peak), mask=m_row)
        tl.store(p_stat + 1, b_log_sum, mask=m_row)
        tl.store(p_stat + 2, b_score, mask=m_row)
    tl.debug_barrier()
    return has_nan


@triton.jit
def score_of(scratch, b_row, b_logit, m_row):
    """Return the scores of candidates with these logits, and the bounds of their rows."""
    p_stat = scratch.stat + b_row.to(tl.int64) * STAT
    b_peak = tl.load(p_stat, mask=m_row, other=0.0)
    b_log_sum = tl.load(p_stat + 1, mask=m_row, other=float("inf"))
    b_score = tl.load(p_stat + 2, mask=m_row, other=0.0)
    b_bound = tl.load(p_stat + 3, mask=m_row, other=0.0)
    return b_score + ((b_logit - b_peak) - b_log_sum), b_bound


@triton.jit
def bound_rows(logits, scratch, beam, p_bin, BINS: tl.constexpr):
    """Write the bound of every row: what its candidates reach if they are among the best of the beam.

    A bin holds the score of the best of some groups of a row, so that bins stand for different candidates.
    A row has no more bins than it may have candidates.
    """
    row_groups = logits.num_slices * LANES
    # without a limit: as many as one pass fills, or four times as many as are wanted
    num_rows = tl.maximum(beam.num_rows, 1)
    many = tl.maximum(row_groups // BIN_PEAKS, tl.cdiv(4 * beam.wanted, num_rows))
    row_bins = tl.where(beam.limit < beam.wanted, beam.limit, many)
    row_bins = tl.maximum(tl.minimum(row_bins, BINS // num_rows), 1)
    num_bins = tl.minimum(beam.num_rows * row_bins, BINS)
    for start in range(0, num_bins, BLOCK_BINS):
        o_bin = start + tl.arange(0, BLOCK_BINS)
        m_bin = o_bin < num_bins
        b_row = beam.first_row + o_bin // row_bins
        b_best = tl.full([BLOCK_BINS], -float("inf"), tl.float32)
        for begin in range(0, row_groups, row_bins * BIN_PEAKS):
            o_group = (begin + o_bin % row_bins)[:, None]
            o_group += tl.arange(0, BIN_PEAKS)[None, :] * row_bins
            p_peak = scratch.peak + b_row.to(tl.int64)[:, None] * row_groups + o_group
            m_peak = m_bin[:, None] & (o_group < row_groups)
            b_peak = tl.load(p_peak, mask=m_peak, other=-float("inf"), cache_modifier=".cg")
            b_peak = tl.where(b_peak == b_peak, b_peak, -float("inf"))
            b_best = tl.maximum(b_best, tl.max(b_peak, 1))
        b_score, _ = score_of(scratch, b_row, b_best, m_bin)
        tl.store(p_bin + o_bin, b_score, mask=m_bin)
    tl.debug_barrier()
    o_bin = tl.arange(0, BINS)
    b_score = tl.load(p_bin + o_bin, mask=o_bin < num_bins, other=-float("inf"))
    b_key = key_of(b_score, o_bin)
    has_enough = tl.sum((b_key > EMPTY).to(tl.int32), 0) >= beam.wanted
    bound = tl.where(has_enough, value_of(nth_largest(b_key, beam.wanted)), LEAST)
    # few bins: then each row keeps to its own limit
    keeps_own = (row_bins == beam.limit) & (beam.num_rows * row_bins <= BINS) & ~has_enough
    for start in range(0, beam.num_rows, BLOCK_BINS):
        o_row = start + tl.arange(0, BLOCK_BINS)
        m_row = o_row < beam.num_rows
        b_bound = tl.where(m_row & keeps_own, float("inf"), bound)
        for i in range(0, tl.where(keeps_own, row_bins, 0)):
            b_bin = tl.load(p_bin + o_row * row_bins + i, mask=m_row, other=-float("inf"))
            b_bound = tl.minimum(b_bound, b_bin)
        p_stat = scratch.stat + (beam.first_row + o_row).to(tl.int64) * STAT
        tl.store(p_stat + 3, tl.maximum(b_bound, LEAST), mask=m_row)
    tl.debug_barrier()


@triton.jit
def list_groups(logits, scratch, beam):
    """List the groups whose peaks reach the bounds of their rows, or are not known; returns how many."""
    row_groups = logits.num_slices * LANES
    first = beam.first_row.to(tl.int64) * row_groups
    num_groups = beam.num_rows * row_groups
    num_listed = beam.begin * 0
    for start in range(0, num_groups, GROUPS):
        o_group = start + tl.arange(0, GROUPS)
        m_group = o_group < num_groups
        p_peak = scratch.peak + first + o_group
        b_peak = tl.load(p_peak, mask=m_group, other=-float("inf"), cache_modifier=".cg")
        b_score, b_bound = score_of(
            scratch, beam.first_row + o_group // row_groups, b_peak, m_group
        )
        m_listed = m_group & ((b_score >= b_bound) | (b_peak != b_peak))
        b_number = tl.cumsum(m_listed.to(tl.int32), 0)
        tl.store(scratch.group + first + num_listed + b_number - 1, o_group, mask=m_listed)
        num_listed += tl.sum(m_listed.to(tl.int32), 0)
    tl.debug_barrier()
    return num_listed


@triton.jit
def token_of(logits, scratch, beam, num_listed, start, PACK: tl.constexpr):
    """Return row, token and logit of these logits of the groups that are listed; a token of -1 is none."""
    row_groups, group_packs = logits.num_slices * LANES, logits.num_tiles * DEPTH
    o_logit = start + tl.arange(0, TILE)
    o_pack = o_logit // PACK
    m_logit = o_pack < num_listed * group_packs
    p_group = scratch.group + beam.first_row.to(tl.int64) * row_groups + o_pack // group_packs
    b_group = tl.load(p_group, mask=m_logit, other=0)
    b_row = beam.first_row + b_group // row_groups
    b_slice, b_lane = b_group % row_groups // LANES, b_group % LANES
    b_pack = (b_slice * group_packs + o_pack % group_packs) * LANES + b_lane
    b_first = logits.lead + b_row.to(tl.int64) * logits.row_stride
    b_token = b_pack * PACK + o_logit % PACK - (b_first % PACK).to(tl.int32)
    m_logit = m_logit & (b_token >= 0) & (b_token < logits.num_columns)
    p_logit = logits.data + b_first + b_token
    b_logit = tl.load(p_logit, mask=m_logit, other=-float("inf")).to(tl.float32)
    return b_row, tl.where(m_logit, b_token, -1), b_logit


@triton.jit
def token_keys(inputs, logits, scratch, beam, num_listed, start, PACK: tl.constexpr):
    """Return the keys [TILE] of these logits of the groups that are listed, EMPTY for none."""
    b_row, b_token, b_logit = token_of(logits, scratch, beam, num_listed, start, PACK)
    m_token = (b_token >= 0) & ~((beam.bans_eos > 0) & ends(b_token, inputs.eos))
    b_score, b_bound = score_of(scratch, b_row, b_logit, b_token >= 0)
    m_token = m_token & (b_score >= b_bound)
    b_parent = tl.load(scratch.parent + b_row, mask=m_token, other=0)
    b_upper = tl.where(m_token, key_of(b_score, b_parent), EMPTY)
    return b_upper, tl.where(m_token, key_of(b_logit, b_token), EMPTY)


@triton.jit
def single_keys(inputs, scratch, beam, start):
    """Return the keys [TILE] of these entries that have one candidate, whatever their logits."""
    o_parent = start + tl.arange(0, TILE)
    m_entry = o_parent < beam.size
    b_row = tl.load(scratch.row_of + beam.begin + o_parent, mask=m_entry, other=0)
    m_single = m_entry & ((b_row < 0) | (beam.forced >= 0))
    b_score = tl.load(inputs.score + beam.begin + o_parent, mask=m_single, other=-float("inf"))
    b_token = tl.where(b_row < 0, inputs.eos[0], beam.forced)
    b_upper = key_of(b_score, o_parent)
    return b_upper, tl.where(b_upper > EMPTY, key_of(tl.zeros([TILE], tl.float32), b_token), EMPTY)


@triton.jit
def is_better(b_upper, b_lower, upper, lower):
    """Say which pairs of keys are larger than others."""
    return (b_upper > upper) | ((b_upper == upper) & (b_lower > lower))


@triton.jit
def sort_list(beam, p_list, num_listed, LIST: tl.constexpr, ROOM: tl.constexpr):
    """Keep the best of the list: in order behind it, and in its first places. Returns how many there are.

    Candidates of a row beyond its limit are left out. A place is the number of better candidates.
    """
    p_sorted = p_list + 2 * ROOM
    num_there = num_listed * 0
    for counts_all in range(tl.where(beam.limit < beam.wanted, 0, 1), 2):
        for begin in range(0, num_listed, OWN):
            o_own = begin + tl.arange(0, OWN)
            m_own = o_own < num_listed
            b_upper = tl.load(p_list + o_own, mask=m_own, other=EMPTY)
            b_lower = tl.load(p_list + ROOM + o_own, mask=m_own, other=EMPTY)
            b_place = tl.zeros([OWN], tl.int32)
            for start in range(0, num_listed, OTHERS):
                o_other = start + tl.arange(0, OTHERS)
                m_other = o_other < num_listed
                b_up = tl.load(p_list + o_other, mask=m_other, other=EMPTY)[:, None]
                b_low = tl.load(p_list + ROOM + o_other, mask=m_other, other=EMPTY)[:, None]
                m_of_row = index_of(b_up) == index_of(b_upper)[None, :]
                m_of_row = m_of_row & (b_low > b_lower[None, :])
                m_before = is_better(b_up, b_low, b_upper[None, :], b_lower[None, :])
                m_before = tl.where(counts_all > 0, m_before, m_of_row)
                b_place += tl.sum(m_before.to(tl.int32), 0)
            tl.debug_barrier()
            m_there = m_own & (b_upper > EMPTY)
            if counts_all > 0:
                m_best = m_there & (b_place < beam.wanted)
                tl.store(p_sorted + b_place, b_upper, mask=m_best)
                tl.store(p_sorted + LIST + b_place, b_lower, mask=m_best)
                num_there += tl.sum(m_there.to(tl.int32), 0)
            else:
                tl.store(
                    p_list + o_own, EMPTY, mask=m_there & (b_place >= tl.maximum(beam.limit, 1))
                )
            tl.debug_barrier()
    num_there = tl.minimum(num_there, beam.wanted)
    o_place = tl.arange(0, LIST)
    m_place = o_place < num_there
    tl.store(p_list + o_place, tl.load(p_sorted + o_place, mask=m_place), mask=m_place)
    p_lower = p_list + ROOM
    tl.store(p_lower + o_place, tl.load(p_sorted + LIST + o_place, mask=m_place), mask=m_place)
    tl.debug_barrier()
    return num_there


@triton.jit
def rank_candidates(
    inputs,
    logits,
    scratch,
    beam,
    p_list,
    PACK: tl.constexpr,
    LIST: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Write the keys of the best candidates of a beam, in order; returns how many there are.

    First keys stand behind the 2 * ROOM places at `p_list`, second ones LIST places behind.
    """
    num_groups = list_groups(logits, scratch, beam)
    may_be_single = ((inputs.given & IS_ENDED) > 0) | (beam.forced >= 0)
    num_entries = tl.where(may_be_single, tl.cdiv(beam.size, TILE) * TILE, 0)
    num_tokens = tl.cdiv(num_groups * (logits.num_tiles * DEPTH) * PACK, TILE) * TILE
    num_listed = beam.begin * 0
    # what is not better cannot be among the best
    upper = num_listed.to(tl.int64) + EMPTY
    lower = upper
    for start in range(0, num_entries + num_tokens + TILE, TILE):
        if start < num_entries:
            b_upper, b_lower = single_keys(inputs, scratch, beam, start)
        else:
            b_upper, b_lower = token_keys(
                inputs, logits, scratch, beam, num_groups, start - num_entries, PACK
            )
        m_new = is_better(b_upper, b_lower, upper, lower)
        num_new = tl.sum(m_new.to(tl.int32), 0)
        if (num_listed + num_new > ROOM) | (start == num_entries + num_tokens):
            num_listed = sort_list(beam, p_list, num_listed, LIST, ROOM)
            if num_listed == beam.wanted:
                upper = tl.load(p_list + num_listed - 1)
                lower = tl.load(p_list + ROOM + num_listed - 1)
            m_new = is_better(b_upper, b_lower, upper, lower)
            num_new = tl.sum(m_new.to(tl.int32), 0)
        if num_new > 0:
            b_place = num_listed + tl.cumsum(m_new.to(tl.int32), 0) - 1
            tl.store(p_list + b_place, b_upper, mask=m_new)
            tl.store(p_list + ROOM + b_place, b_lower, mask=m_new)
            num_listed += num_new
            tl.debug_barrier()
    return num_listed
