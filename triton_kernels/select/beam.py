"""Find the survivors of one beam, after the best tokens of all its rows have been ranked."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.select.keys import (
    EMPTY,
    add_keys,
    index_of,
    key_of,
    sort_keys,
    value_of,
)
from pybeam.triton_kernels.select.options import (
    BEST_FINISHED,
    FORCED,
    HELD,
    IS_ENDED,
    LOCAL_MARGIN,
    MARGIN,
    REFILL,
    SHRINK,
    ends,
    limit_of,
    load_given,
    num_eos,
)
from pybeam.triton_kernels.select.row import BLOCK

HALF = tl.constexpr(1 << 16)


class Ranked(NamedTuple):
    """Where the ranked tokens of rows stand: pointers, and a number."""

    row_of: tl.tensor  # rows of entries, -1 for held ones
    total: tl.tensor  # peak and log of the sum of every row
    key: tl.tensor  # of the best token of the first row
    row_words: tl.tensor  # from the keys of one row to those of the next


class Beam(NamedTuple):
    """One beam: its first entry, its entries, and how many tokens of a row matter, or the only one."""

    begin: tl.tensor
    size: tl.tensor
    limit: tl.tensor
    forced: tl.tensor


class Candidates(NamedTuple):
    """Candidates, of which some stand for hypotheses that have ended."""

    token: tl.tensor
    parent: tl.tensor
    score: tl.tensor
    log_prob: tl.tensor
    is_held: tl.tensor


@triton.jit
def find_rows(inputs, ranked, begin, end, first_row):
    """Write the row of every entry of a beam, -1 for a held one; returns whether one has a NaN."""
    has_ended = (inputs.given & IS_ENDED) > 0
    has_nan = begin * 0
    row = first_row
    for start in range(begin, end, BLOCK):
        o_entry = start + tl.arange(0, BLOCK)
        m_entry = o_entry < end
        b_ended = tl.load(inputs.is_ended + o_entry, mask=m_entry & has_ended, other=0).to(tl.int32)
        m_live = m_entry & (b_ended == 0)
        b_row = row + tl.cumsum(m_live.to(tl.int32), 0) - 1
        tl.store(ranked.row_of + o_entry, tl.where(m_live, b_row, -1), mask=m_entry)
        b_log_sum = tl.load(
            ranked.total + 2 * b_row.to(tl.int64) + 1, mask=m_live, other=0.0, cache_modifier=".cg"
        )
        has_nan |= tl.max((b_log_sum != b_log_sum).to(tl.int32), 0)
        row += tl.sum(m_live.to(tl.int32), 0)
    tl.debug_barrier()
    return has_nan


@triton.jit
def candidates_of(inputs, ranked, beam, b_parent, b_rank, m_candidate):
    """Return the candidates of these entries and ranks. A score of -inf stands for none."""
    p_score, p_row = inputs.score + beam.begin + b_parent, ranked.row_of + beam.begin + b_parent
    b_score = tl.load(p_score, mask=m_candidate, other=-float("inf"))
    b_row = tl.load(p_row, mask=m_candidate, other=-1, cache_modifier=".cg").to(tl.int64)
    m_held = m_candidate & (b_row < 0)
    m_token = m_candidate & (b_row >= 0) & (b_rank < beam.limit) & (beam.forced < 0)
    p_key = ranked.key + b_row * ranked.row_words + b_rank
    b_key = tl.load(p_key, mask=m_token, other=EMPTY, cache_modifier=".cg")
    p_total = ranked.total + 2 * b_row
    b_peak = tl.load(p_total, mask=m_token, other=0.0, cache_modifier=".cg")
    b_log_sum = tl.load(p_total + 1, mask=m_token, other=0.0, cache_modifier=".cg")
    m_single = (m_held | (beam.forced >= 0)) & (b_rank == 0)
    b_log_prob = tl.where(b_key > EMPTY, (value_of(b_key) - b_peak) - b_log_sum, -float("inf"))
    b_log_prob = tl.where(m_single, 0.0, b_log_prob)
    b_token = tl.where(beam.forced >= 0, beam.forced, index_of(b_key))
    b_token = tl.where(m_held, inputs.eos[0], b_token)
    return Candidates(b_token, b_parent, b_score + b_log_prob, b_log_prob, m_held)


@triton.jit
def rank_candidates(inputs, ranked, beam, wanted, p_list, LIST: tl.constexpr, CHUNK: tl.constexpr):
    """Write the keys of the best `wanted` candidates of a beam in order; returns how many there are.

    The index of a key is LIST * parent + rank. There is room for LIST keys at `p_list`, and for as many
    behind them, where they stand in order. CHUNK candidates are compared at once, the best of the earlier
    ones included; it is more than LIST.
    """
    # rank by rank: when no parent has a candidate that counts, neither have the ranks behind it
    num_candidates = beam.size * tl.maximum(beam.limit, 1)
    o_chunk = tl.arange(0, CHUNK)
    num_kept = beam.size * 0
    bound = num_kept.to(tl.int64) + EMPTY
    start = num_kept
    num_beaten = num_kept  # candidates in a row that did not count
    while (start < num_candidates) & (num_beaten < beam.size):
        o_candidate = start + o_chunk - num_kept
        m_candidate = (o_chunk >= num_kept) & (o_candidate < num_candidates)
        b_rank = o_candidate // beam.size
        b_parent = o_candidate % beam.size
        found = candidates_of(inputs, ranked, beam, b_parent, b_rank, m_candidate)
        b_key = key_of(found.score, b_parent * LIST + b_rank)
        start += CHUNK - num_kept
        num_beaten += CHUNK - num_kept
        num_kept, bound, has_larger = add_keys(b_key, num_kept, bound, wanted, p_list)
        num_beaten = tl.where(has_larger, 0, num_beaten)
    sort_keys(p_list, num_kept, p_list + LIST, 0, LIST)
    return num_kept


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
def finish_beam(
    inputs,
    ranked,
    survivors,
    p_list,
    i_beam,
    first_row,
    capacity,
    LIST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Rank the candidates of all rows of a beam, apply the rules and write the survivors."""
    begin = tl.load(inputs.offset + i_beam)
    end = tl.load(inputs.offset + i_beam + 1)
    has_nan = find_rows(inputs, ranked, begin, end, first_row)
    width = tl.load(inputs.width + i_beam)
    wanted = tl.where(inputs.finishing == REFILL, (1 + num_eos(inputs.given)) * width, width)
    # beams with more candidates than the list has room for see fewer than the rule says
    wanted = tl.minimum(wanted, LIST)
    limit = limit_of(inputs, i_beam)
    forced = load_given(inputs.forced, i_beam, inputs.given, FORCED, -1)
    beam = Beam(begin, end - begin, limit, forced)
    num_candidates = has_nan * 0
    if (wanted > 0) & (has_nan == 0):
        num_candidates = rank_candidates(inputs, ranked, beam, wanted, p_list, LIST, CHUNK)
    o_rank = tl.arange(0, LIST)
    m_candidate = o_rank < num_candidates
    p_sorted = p_list + LIST
    b_key = tl.load(p_sorted + o_rank, mask=m_candidate, other=EMPTY, cache_modifier=".cg")
    b_place = index_of(b_key)
    found = candidates_of(inputs, ranked, beam, b_place // LIST, b_place % LIST, m_candidate)
    b_ends = ends(found.token, inputs.eos)
    m_finished, m_next = finish(b_ends, m_candidate, width, inputs.finishing, LIST)
    m_kept = prune(inputs, i_beam, found, m_finished, m_next)
    write_survivors(survivors, i_beam, found, m_finished, m_kept, capacity)
    tl.store(survivors.has_nan + i_beam, has_nan != 0)
