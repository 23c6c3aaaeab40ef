"""Find the survivors of one beam, after all its rows have been read."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.select.candidates import (
    STAT,
    Beam,
    bound_rows,
    combine_slices,
    find_rows,
    rank_candidates,
)
from pybeam.triton_kernels.select.keys import EMPTY, index_of, value_of
from pybeam.triton_kernels.select.options import (
    BAN_EOS,
    BEST_FINISHED,
    FORCED,
    HELD,
    LOCAL_MARGIN,
    MARGIN,
    MAX_CANDIDATES,
    REFILL,
    SHRINK,
    ends,
    load_given,
    num_eos,
)
from pybeam.triton_kernels.select.row import BLOCK

HALF = tl.constexpr(1 << 16)


class Candidates(NamedTuple):
    """Candidates, of which some stand for hypotheses that have ended."""

    token: tl.tensor
    parent: tl.tensor
    score: tl.tensor
    log_prob: tl.tensor
    is_held: tl.tensor


@triton.jit
def candidates_of(inputs, scratch, beam, b_upper, b_lower, m_candidate):
    """Return the candidates of these keys."""
    b_parent = index_of(b_upper)
    p_row = scratch.row_of + beam.begin + b_parent
    b_row = tl.load(p_row, mask=m_candidate, other=-1)
    m_held = m_candidate & (b_row < 0)
    m_token = m_candidate & (b_row >= 0) & (beam.forced < 0)
    p_stat = scratch.stat + b_row.to(tl.int64) * STAT
    b_peak = tl.load(p_stat, mask=m_token, other=0.0)
    b_log_sum = tl.load(p_stat + 1, mask=m_token, other=0.0)
    b_log_prob = tl.where(m_token, (value_of(b_lower) - b_peak) - b_log_sum, 0.0)
    return Candidates(index_of(b_lower), b_parent, value_of(b_upper), b_log_prob, m_held)


@triton.jit
def finish(b_ends, m_candidate, width, finishing, LIST: tl.constexpr):
    """Say which of the ranked candidates finish now, and which are in the next beam."""
    o_rank = tl.arange(0, LIST)
    m_goes_on = m_candidate & ~b_ends
    # HELD: the run of ended candidates before the first that goes on
    num_popped = tl.min(tl.where(m_goes_on, o_rank, LIST), 0)
    bound = tl.where(finishing == HELD, num_popped, 0)
    bound = tl.where(finishing == SHRINK, LIST, bound)
    bound = tl.where(finishing == REFILL, width, bound)
    m_finished = m_candidate & b_ends & (o_rank < bound)
    m_next = m_candidate & ~m_finished
    if finishing == REFILL:
        b_place = tl.cumsum(m_goes_on.to(tl.int32), 0) - 1
        m_next = m_goes_on & (b_place < width)
    return m_finished, m_next


@triton.jit
def prune(inputs, i_beam, found, m_finished, m_next):
    """Say which candidates of the next beam are within both margins."""
    given = inputs.given
    best_finished = load_given(inputs.best_finished, i_beam, given, BEST_FINISHED, -float("inf"))
    margin = load_given(inputs.margin, i_beam, given, MARGIN, float("inf"))
    local_margin = load_given(inputs.local_margin, i_beam, given, LOCAL_MARGIN, float("inf"))
    m_compared = m_next | (m_finished & (inputs.finishing == HELD))
    best = tl.max(tl.where(m_compared, found.score, -float("inf")), 0)
    m_near = within(found.score, tl.maximum(best, best_finished), margin)
    m_token = m_next & ~found.is_held
    best_log_prob = tl.max(tl.where(m_token, found.log_prob, -float("inf")), 0)
    m_likely = found.is_held | within(found.log_prob, best_log_prob, local_margin)
    return m_next & m_near & m_likely


@triton.jit
def within(b_value, best, margin):
    """Say which numbers are less than the margin below the best; a negative margin keeps ties."""
    keeps_ties = margin < 0
    floor = best - tl.where(keeps_ties, -margin, margin)
    return tl.where(keeps_ties, b_value >= floor, b_value > floor)


@triton.jit
def write_survivors(survivors, i_beam, found, m_finished, m_kept, capacity):
    """Write the survivors of a beam, finished ones first, and how many there are."""
    line = i_beam.to(tl.int64) * capacity
    p_token, p_parent = survivors.token + line, survivors.parent + line
    p_score, p_log_prob = survivors.score + line, survivors.log_prob + line
    # both are counted in one number, finished ones in its upper half
    b_one = m_finished.to(tl.int32) * HALF + m_kept.to(tl.int32)
    b_number, total = tl.cumsum(b_one, 0), tl.sum(b_one, 0)
    num_finished = total // HALF
    count = num_finished + total % HALF
    b_place = tl.where(m_finished, b_number // HALF, num_finished + b_number % HALF) - 1
    m_written = (m_finished | m_kept) & (b_place < capacity)
    tl.store(p_token + b_place, found.token, mask=m_written)
    tl.store(p_parent + b_place, found.parent, mask=m_written)
    tl.store(p_score + b_place, found.score, mask=m_written)
    tl.store(p_log_prob + b_place, found.log_prob, mask=m_written)
    for start in range(0, capacity, BLOCK):
        o_column = start + tl.arange(0, BLOCK)
        m_column = (o_column >= count) & (o_column < capacity)
        tl.store(p_token + o_column, -1, mask=m_column)
        tl.store(p_parent + o_column, -1, mask=m_column)
        tl.store(p_score + o_column, -float("inf"), mask=m_column)
        tl.store(p_log_prob + o_column, -float("inf"), mask=m_column)
    tl.store(survivors.count + i_beam, count)
    tl.store(survivors.num_finished + i_beam, num_finished)


@triton.jit
def beam_of_entries(inputs, i_beam, first_row, num_rows, LIST: tl.constexpr):
    """Return what is wanted of a beam."""
    given = inputs.given
    begin, end = tl.load(inputs.offset + i_beam), tl.load(inputs.offset + i_beam + 1)
    width = tl.load(inputs.width + i_beam)
    wanted = tl.where(inputs.finishing == REFILL, (1 + num_eos(given)) * width, width)
    # beams with more candidates than the list has room for see fewer than the rule says
    wanted = tl.maximum(tl.minimum(wanted, LIST), 0)
    limit = load_given(inputs.max_candidates, i_beam, given, MAX_CANDIDATES, LIST)
    limit = tl.maximum(tl.minimum(limit, wanted), 0)
    forced = load_given(inputs.forced, i_beam, given, FORCED, -1)
    bans_eos = load_given(inputs.ban_eos, i_beam, given, BAN_EOS, 0).to(tl.int32)
    return Beam(begin, end - begin, first_row, num_rows, wanted, limit, forced, bans_eos)


@triton.jit
def finish_beam(
    inputs,
    logits,
    scratch,
    survivors,
    i_beam,
    first_row,
    num_rows,
    capacity,
    PACK: tl.constexpr,
    LIST: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Rank the candidates of all rows of a beam, apply the rules and write the survivors."""
    beam = beam_of_entries(inputs, i_beam, first_row, num_rows, LIST)
    p_list = scratch.list + i_beam.to(tl.int64) * (2 * ROOM + 2 * LIST)
    find_rows(inputs, scratch, beam)
    has_nan = combine_slices(inputs, logits, scratch, beam)
    num_candidates = has_nan * 0
    if (beam.wanted > 0) & (has_nan == 0):
        bound_rows(logits, scratch, beam, scratch.bin + i_beam * (2 * LIST), 2 * LIST)
        num_candidates = rank_candidates(inputs, logits, scratch, beam, p_list, PACK, LIST, ROOM)
    o_rank = tl.arange(0, LIST)
    m_candidate = o_rank < num_candidates
    p_sorted = p_list + 2 * ROOM
    b_upper = tl.load(p_sorted + o_rank, mask=m_candidate, other=EMPTY)
    b_lower = tl.load(p_sorted + LIST + o_rank, mask=m_candidate, other=EMPTY)
    found = candidates_of(inputs, scratch, beam, b_upper, b_lower, m_candidate)
    b_ends = ends(found.token, inputs.eos)
    width = tl.load(inputs.width + i_beam)
    m_finished, m_next = finish(b_ends, m_candidate, width, inputs.finishing, LIST)
    m_kept = prune(inputs, i_beam, found, m_finished, m_next)
    write_survivors(survivors, i_beam, found, m_finished, m_kept, capacity)
    tl.store(survivors.has_nan + i_beam, has_nan != 0)
