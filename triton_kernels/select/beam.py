"""Find the survivors of one beam, after the best tokens of all its rows have been ranked."""

import triton
import triton.language as tl

from pybeam.triton_kernels.select.keys import (
    EMPTY,
    index_of,
    keep_largest,
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


@triton.jit
def find_rows(p_is_ended, p_row_of, p_total, begin, end, first_row, has_ended):
    """Write the row of every entry of a beam, -1 for a held one; returns whether one has a NaN."""
    has_nan = begin * 0
    row = first_row
    for start in range(begin, end, BLOCK):
        o_entry = start + tl.arange(0, BLOCK)
        m_entry = o_entry < end
        b_ended = tl.load(p_is_ended + o_entry, mask=m_entry & has_ended, other=0).to(tl.int32)
        m_live = m_entry & (b_ended == 0)
        b_row = row + tl.cumsum(m_live.to(tl.int32), 0) - 1
        tl.store(p_row_of + o_entry, tl.where(m_live, b_row, -1), mask=m_entry)
        b_log_sum = tl.load(
            p_total + 2 * b_row.to(tl.int64) + 1, mask=m_live, other=0.0, cache_modifier=".cg"
        )
        has_nan |= tl.max((b_log_sum != b_log_sum).to(tl.int32), 0)
        row += tl.sum(m_live.to(tl.int32), 0)
    tl.debug_barrier()
    return has_nan


@triton.jit
def candidate(
    p_score,
    p_row_of,
    p_total,
    p_ranked,
    row_words,
    begin,
    b_parent,
    b_rank,
    m_candidate,
    limit,
    forced,
    eos_id,
):
    """Return token, score and log_prob of the candidates of these entries and ranks, and which are held.

    A score of -inf stands for no candidate.
    """
    b_score = tl.load(p_score + begin + b_parent, mask=m_candidate, other=-float("inf"))
    b_row = tl.load(
        p_row_of + begin + b_parent, mask=m_candidate, other=-1, cache_modifier=".cg"
    ).to(tl.int64)
    m_held = m_candidate & (b_row < 0)
    m_token = m_candidate & (b_row >= 0) & (b_rank < limit) & (forced < 0)
    p_key = p_ranked + b_row * row_words + b_rank
    b_key = tl.load(p_key, mask=m_token, other=EMPTY, cache_modifier=".cg")
    b_peak = tl.load(p_total + 2 * b_row, mask=m_token, other=0.0, cache_modifier=".cg")
    b_log_sum = tl.load(p_total + 2 * b_row + 1, mask=m_token, other=0.0, cache_modifier=".cg")
    m_single = (m_held | (forced >= 0)) & (b_rank == 0)
    b_log_prob = tl.where(b_key > EMPTY, (value_of(b_key) - b_peak) - b_log_sum, -float("inf"))
    b_log_prob = tl.where(m_single, 0.0, b_log_prob)
    b_token = tl.where(m_held, eos_id, tl.where(forced >= 0, forced, index_of(b_key)))
    return b_token, b_score + b_log_prob, b_log_prob, m_held


@triton.jit
def rank_candidates(
    p_score,
    p_row_of,
    p_total,
    p_ranked,
    row_words,
    p_list,
    p_sorted,
    begin,
    size,
    wanted,
    limit,
    forced,
    eos_id,
    LIST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write the keys of the best `wanted` candidates of a beam in order; returns how many there are.

    The index of a key is LIST * parent + rank. There is room for LIST keys. CHUNK candidates are compared at
    once, the best LIST of the earlier ones included.
    """
    # rank by rank: when no parent has a candidate that counts, neither have the ranks behind it
    num_candidates = size * tl.maximum(limit, 1)
    o_chunk = tl.arange(0, CHUNK)
    num_kept = size * 0
    bound = num_kept.to(tl.int64) + EMPTY
    start = num_kept
    num_beaten = num_kept  # candidates in a row that did not count
    while (start < num_candidates) & (num_beaten < size):
        o_candidate = start + o_chunk - LIST
        m_candidate = (o_chunk >= LIST) & (o_candidate < num_candidates)
        b_rank = o_candidate // size
        b_parent = o_candidate % size
        _, b_score, _, _ = candidate(
            p_score,
            p_row_of,
            p_total,
            p_ranked,
            row_words,
            begin,
            b_parent,
            b_rank,
            m_candidate,
            limit,
            forced,
            eos_id,
        )
        b_key = key_of(b_score, b_parent * LIST + b_rank)
        num_beaten += CHUNK - LIST
        if tl.max(b_key, 0) > bound:
            b_kept = tl.load(
                p_list + o_chunk, mask=o_chunk < num_kept, other=EMPTY, cache_modifier=".cg"
            )
            num_kept, bound = keep_largest(tl.maximum(b_key, b_kept), wanted, p_list)
            num_beaten = num_kept * 0
        start += CHUNK - LIST
    sort_keys(p_list, num_kept, p_sorted, 0, LIST)
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
def prune(
    b_score, b_log_prob, m_held, m_finished, m_next, best_finished, margin, local_margin, finishing
):
    """Say which candidates of the next beam are within both margins."""
    m_compared = m_next | (m_finished & (finishing == HELD))
    best = tl.max(tl.where(m_compared, b_score, -float("inf")), 0)
    m_near = within(b_score, tl.maximum(best, best_finished), margin)
    best_log_prob = tl.max(tl.where(m_next & ~m_held, b_log_prob, -float("inf")), 0)
    return m_next & m_near & (m_held | within(b_log_prob, best_log_prob, local_margin))


@triton.jit
def within(b_value, best, margin):
    """Say which numbers are less than the margin below the best; a negative margin keeps ties."""
    keeps_ties = margin < 0
    floor = best - tl.where(keeps_ties, -margin, margin)
    return tl.where(keeps_ties, b_value >= floor, b_value > floor)


@triton.jit
def write_survivors(
    p_token,
    p_parent,
    p_score,
    p_log_prob,
    b_token,
    b_parent,
    b_score,
    b_log_prob,
    m_finished,
    m_kept,
    capacity,
):
    """Write the survivors of a beam, finished ones first; returns the numbers of finished and of all."""
    num_finished = tl.sum(m_finished.to(tl.int32), 0)
    count = num_finished + tl.sum(m_kept.to(tl.int32), 0)
    b_place = tl.where(
        m_finished,
        tl.cumsum(m_finished.to(tl.int32), 0) - 1,
        num_finished + tl.cumsum(m_kept.to(tl.int32), 0) - 1,
    )
    m_written = (m_finished | m_kept) & (b_place < capacity)
    tl.store(p_token + b_place, b_token, mask=m_written)
    tl.store(p_parent + b_place, b_parent, mask=m_written)
    tl.store(p_score + b_place, b_score, mask=m_written)
    tl.store(p_log_prob + b_place, b_log_prob, mask=m_written)
    for start in range(0, capacity, BLOCK):
        o_column = start + tl.arange(0, BLOCK)
        m_column = (o_column >= count) & (o_column < capacity)
        tl.store(p_token + o_column, -1, mask=m_column)
        tl.store(p_parent + o_column, -1, mask=m_column)
        tl.store(p_score + o_column, -float("inf"), mask=m_column)
        tl.store(p_log_prob + o_column, -float("inf"), mask=m_column)
    return num_finished, count


@triton.jit
def finish_beam(
    p_score,
    p_offset,
    p_width,
    p_is_ended,
    p_max_candidates,
    p_margin,
    p_local_margin,
    p_best_finished,
    p_forced,
    p_token,
    p_parent,
    p_new_score,
    p_log_prob,
    p_count,
    p_num_finished,
    p_has_nan,
    p_row_of,
    p_total,
    p_ranked,
    row_words,
    p_list,
    i_beam,
    first_row,
    num_columns,
    given,
    eos,
    finishing,
    capacity,
    LIST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Rank the candidates of all rows of a beam, apply the rules and write the survivors."""
    begin = tl.load(p_offset + i_beam)
    end = tl.load(p_offset + i_beam + 1)
    has_ended = (given & IS_ENDED) > 0
    has_nan = find_rows(p_is_ended, p_row_of, p_total, begin, end, first_row, has_ended)
    width = tl.load(p_width + i_beam)
    wanted = tl.where(finishing == REFILL, (1 + num_eos(given)) * width, width)
    # beams with more candidates than the list has room for see fewer than the rule says
    wanted = tl.minimum(wanted, LIST)
    limit = limit_of(p_width, p_max_candidates, i_beam, num_columns, given, finishing)
    forced = load_given(p_forced, i_beam, given, FORCED, -1)
    p_sorted = p_list + LIST
    num_candidates = has_nan * 0
    if (wanted > 0) & (has_nan == 0):
        num_candidates = rank_candidates(
            p_score,
            p_row_of,
            p_total,
            p_ranked,
            row_words,
            p_list,
            p_sorted,
            begin,
            end - begin,
            wanted,
            limit,
            forced,
            eos[0],
            LIST,
            CHUNK,
        )
    o_rank = tl.arange(0, LIST)
    m_candidate = o_rank < num_candidates
    b_key = tl.load(p_sorted + o_rank, mask=m_candidate, other=EMPTY, cache_modifier=".cg")
    b_place = index_of(b_key)
    b_parent = b_place // LIST
    b_token, b_score, b_log_prob, m_held = candidate(
        p_score,
        p_row_of,
        p_total,
        p_ranked,
        row_words,
        begin,
        b_parent,
        b_place % LIST,
        m_candidate,
        limit,
        forced,
        eos[0],
    )
    b_ends = ends(b_token, eos)
    m_finished, m_next = finish(b_ends, m_candidate, width, finishing, LIST)
    m_kept = prune(
        b_score,
        b_log_prob,
        m_held,
        m_finished,
        m_next,
        load_given(p_best_finished, i_beam, given, BEST_FINISHED, -float("inf")),
        load_given(p_margin, i_beam, given, MARGIN, float("inf")),
        load_given(p_local_margin, i_beam, given, LOCAL_MARGIN, float("inf")),
        finishing,
    )
    line = i_beam.to(tl.int64) * capacity
    num_finished, count = write_survivors(
        p_token + line,
        p_parent + line,
        p_new_score + line,
        p_log_prob + line,
        b_token,
        b_parent,
        b_score,
        b_log_prob,
        m_finished,
        m_kept,
        capacity,
    )
    tl.store(p_count + i_beam, count)
    tl.store(p_num_finished + i_beam, num_finished)
    tl.store(p_has_nan + i_beam, has_nan != 0)
