"""Hypotheses that finish in a step, and the rules that end a search; `pybeam.stopping` says what each is."""

import triton
import triton.language as tl

from pybeam.contracts import Certificate, Finishing, Top
from pybeam.triton_kernels.beam.columns import (
    FINISHED_FINAL,
    FLOAT_CUT_LENGTH_OFFSET,
    INT_CERTIFIED,
    INT_MAX_LENGTH,
    INT_PREFIX_LENGTH,
    INT_SCORED_FROM,
    INT_TOP_HAS_ENDED,
    NUM_FINISHED,
    STOP_EMPTY_BEAM,
    STOP_ERROR,
    STOP_HEURISTIC,
    STOP_MAX_LENGTH,
    STOP_N_BEST,
    STOP_OPTIMAL,
    STOP_RUNNING,
    STOP_TOP_FINISHED,
    STOP_WIDTH,
)
from pybeam.triton_kernels.beam.finish import (
    copy_finished,
    endings,
    final_score,
    finish_ranks,
    keep_best,
    lines_of,
    next_length,
    normed,
    rewarded,
)

REFILL = tl.constexpr(int(Finishing.REFILL))
NO_CERTIFICATE = tl.constexpr(int(Certificate.NONE))
BOUND = tl.constexpr(int(Certificate.BOUND))
CURRENT = tl.constexpr(int(Certificate.CURRENT))
TOP_IGNORED, TOP_EVER = tl.constexpr(int(Top.IGNORED)), tl.constexpr(int(Top.EVER))


@triton.jit
def is_topped(step, p_ints, first, count, num_found, EVER: tl.constexpr):
    """Whether the best candidate of a step (see `Top`) has finished, and enough have."""
    survivors, p_eos_token = step.survivors, step.eos_token
    p_own = tl.program_id(0).to(tl.int64) * step.numbers.capacity
    has_both = (first > 0) & (first < count)
    p_other = p_own + tl.where(has_both, first, 0)
    own, other = tl.load(survivors.score + p_own), tl.load(survivors.score + p_other)
    parent, next_parent = tl.load(survivors.parent + p_own), tl.load(survivors.parent + p_other)
    token, next_token = tl.load(p_eos_token + p_own), tl.load(p_eos_token + p_other)
    is_before = (parent < next_parent) | ((parent == next_parent) & (token < next_token))
    is_best = (own > other) | ((own == other) & is_before)
    has_ended = (first > 0) & (is_best | (first >= count))
    if EVER:
        has_ended |= tl.load(p_ints + INT_TOP_HAS_ENDED) > 0
        tl.debug_barrier()
        tl.store(p_ints + INT_TOP_HAS_ENDED, has_ended.to(tl.int32))
    return has_ended & (num_found >= tl.load(p_ints + INT_CERTIFIED))


@triton.jit
def is_certified(
    step, i_slot, first, count, num_finished, IS_CURRENT: tl.constexpr, CHUNK: tl.constexpr
):
    """Whether nothing in the new beam can beat the finished hypotheses; see `Certificate`."""
    survivors, max_rows = step.survivors, step.numbers.max_rows
    p_ints, p_floats, table = lines_of(step.beams, i_slot, step.max_finished)
    best = -float("inf") + tl.zeros([CHUNK], tl.float32)
    held = best
    for start in range(first, count, CHUNK):
        o_rank = start + tl.arange(0, CHUNK)
        o_survivor = tl.program_id(0).to(tl.int64) * step.numbers.capacity + o_rank
        m_rank = o_rank < count
        eos_id = step.numbers.eos_id
        is_ended = tl.load(survivors.token + o_survivor, mask=m_rank, other=eos_id) == eos_id
        b_parent = tl.load(survivors.parent + o_survivor, mask=m_rank, other=0)
        p_entry = i_slot * max_rows + tl.minimum(tl.maximum(b_parent, 0), max_rows - 1)
        length, _, _ = endings(step, p_ints, p_entry, o_survivor, m_rank & is_ended)
        score = tl.load(survivors.score + o_survivor, mask=m_rank, other=float("-inf"))
        final = final_score(p_floats, score, length, is_ended)
        held = tl.maximum(held, tl.where(m_rank & is_ended, final, float("-inf")))
        best = tl.maximum(best, tl.where(is_ended, float("-inf"), score))
    best = tl.max(best, 0)
    least = next_length(p_ints).to(tl.float64)
    most = least
    if not IS_CURRENT:
        limit = tl.load(p_ints + INT_PREFIX_LENGTH) + tl.load(p_ints + INT_MAX_LENGTH)
        limit -= tl.load(p_ints + INT_SCORED_FROM)
        most = limit.to(tl.float64) + tl.load(p_floats + FLOAT_CUT_LENGTH_OFFSET).to(tl.float64)
        least = tl.minimum(least + 1, most)
    reachable = tl.maximum(normed(p_floats, best, least), normed(p_floats, best, most))
    reachable += tl.maximum(rewarded(p_floats, least), rewarded(p_floats, most))
    bound = tl.maximum(tl.max(held, 0), reachable.to(tl.float32))
    certified = tl.load(p_ints + INT_CERTIFIED)
    has_enough = (certified > 0) & (num_finished >= certified)
    p_worst = table.floats + (certified - 1) * NUM_FINISHED + FINISHED_FINAL
    return has_enough & (tl.load(p_worst, mask=has_enough, other=0.0) >= bound)


@triton.jit
def stop_reason(beam, has_nan, num_found, num_rows, tops, is_sure, IS_BOUND: tl.constexpr):
    """Return why a source stops, or that it is running."""
    reason = tl.where(beam.is_cut, STOP_MAX_LENGTH, STOP_RUNNING)
    reason = tl.where(num_rows == 0, STOP_EMPTY_BEAM, reason)
    reason = tl.where(is_sure, STOP_OPTIMAL if IS_BOUND else STOP_HEURISTIC, reason)
    reason = tl.where(tops, STOP_TOP_FINISHED, reason)
    by_count = tl.where(beam.stop_at < beam.width, STOP_N_BEST, STOP_WIDTH)
    reason = tl.where(num_found >= beam.stop_at, by_count, reason)
    return tl.where(has_nan, STOP_ERROR, reason)


@triton.jit
def decide(
    step,
    listed,
    beam,
    has_nan,
    i_slot,
    ranks,  # see `ranks_of`
    num_rows,
    FINISHING: tl.constexpr,
    KEEPS_BEST: tl.constexpr,
    TOP: tl.constexpr,
    CERTIFICATE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Let the first survivors finish, and decide whether the search is over.

    Returns the reason to stop, how many hypotheses are listed, and what they make of the beam: how many it
    keeps, how many it has found, and the best score.
    """
    p_ints, _, table = lines_of(step.beams, i_slot, step.max_finished)
    num_before = tl.minimum(beam.num_finished, step.max_finished)
    first, count = ranks
    num_leading = first
    if KEEPS_BEST:
        for start in range(0, num_before, CHUNK):
            o_old = start + tl.arange(0, CHUNK)
            copy_finished(listed, table, o_old, o_old, o_old < num_before)
    elif FINISHING == REFILL:
        num_leading = tl.minimum(first, beam.width - num_before)
    num_listed, best_score = finish_ranks(
        step, listed, i_slot, 0, num_leading, num_before, beam.best_score, False, CHUNK
    )
    num_found = beam.num_found + num_listed - num_before
    num_finished = num_listed
    if KEEPS_BEST:
        num_finished = tl.minimum(num_listed, beam.width)
        keep_best(table, listed, num_listed, num_finished, CHUNK)
    tops, is_sure = has_nan, has_nan
    if TOP != TOP_IGNORED:
        tops = is_topped(step, p_ints, first, count, num_found, TOP == TOP_EVER)
    if CERTIFICATE != NO_CERTIFICATE:
        # every thread sees the finished hypotheses
        tl.debug_barrier()
        is_sure = is_certified(
            step, i_slot, first, count, num_finished, CERTIFICATE == CURRENT, CHUNK
        )
    reason = stop_reason(beam, has_nan, num_found, num_rows, tops, is_sure, CERTIFICATE == BOUND)
    return reason, num_listed, num_finished, num_found, best_score
