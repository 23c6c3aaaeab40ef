"""Hypotheses that finish: their final scores, and the lists that they join.

All final scores are computed in float64 and rounded once, as on a CPU. There a power is `pow`. Here it is
``exp(alpha * log(base))``, with alpha 0 and 1 exact: what differs is the last few bits of a float64, so a
final score differs only where such a number lies at the border between two float32.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exclusive_sum
from pybeam.triton_kernels.beam.columns import (
    FINISHED_EOS,
    FINISHED_FINAL,
    FINISHED_LENGTH,
    FINISHED_LOG_PROB,
    FINISHED_NODE,
    FINISHED_SCORE,
    FLOAT_ALPHA,
    FLOAT_BEST_FINISHED,
    FLOAT_CAP,
    FLOAT_CUT_LENGTH_OFFSET,
    FLOAT_OFFSET,
    FLOAT_REWARD,
    FLOAT_SCALE,
    INT_DEPTH,
    INT_ENDED_ONLY,
    INT_MAX_LENGTH,
    INT_NUM_ENTRIES,
    INT_NUM_FINISHED,
    INT_NUM_FOUND,
    INT_NUM_ROWS,
    INT_PREFIX_LENGTH,
    INT_SCORED_FROM,
    INT_STOP_AT,
    INT_WIDTH,
    NUM_FINISHED,
    NUM_FLOATS,
    NUM_INTS,
)

# final scores that one hypothesis is compared with at a time
TILE_FINALS = tl.constexpr(16)


class Finished(NamedTuple):
    """A list of finished hypotheses: pointers to ints and floats, and for how many there is room."""

    ints: tl.tensor
    floats: tl.tensor
    num_places: tl.tensor


class Scratch(NamedTuple):
    """Room for lists of `keep_best`, and for the places of live nodes; see `inherit`."""

    ints: tl.tensor
    floats: tl.tensor
    num_places: tl.tensor
    place: tl.tensor


class Step(NamedTuple):
    """All that a step of beams reads and changes, of all sources."""

    tree: tl.tuple
    beams: tl.tuple
    survivors: tl.tuple
    eos_token: tl.tensor  # the tokens of survivors as they were before all that end became one
    numbers: tl.tuple
    max_finished: tl.tensor


class Beam(NamedTuple):
    """A beam as it was before a step. All of it is loaded together, before anything waits."""

    num_rows: tl.tensor
    depth: tl.tensor
    num_finished: tl.tensor
    num_found: tl.tensor
    best_score: tl.tensor  # of those found
    width: tl.tensor
    stop_at: tl.tensor
    moves: tl.tensor  # an empty slot may be named many times and stays as it is
    is_cut: tl.tensor  # whether a row has no room for another token when this step is done


@triton.jit
def beam_of(beams, i_slot):
    p_ints, p_floats = beams.ints + i_slot * NUM_INTS, beams.floats + i_slot * NUM_FLOATS
    depth = tl.load(p_ints + INT_DEPTH)
    num_tokens = depth + 1 - tl.load(p_ints + INT_PREFIX_LENGTH)
    return Beam(
        tl.load(p_ints + INT_NUM_ROWS),
        depth,
        tl.load(p_ints + INT_NUM_FINISHED),
        tl.load(p_ints + INT_NUM_FOUND),
        tl.load(p_floats + FLOAT_BEST_FINISHED),
        tl.load(p_ints + INT_WIDTH),
        tl.load(p_ints + INT_STOP_AT),
        tl.load(p_ints + INT_NUM_ENTRIES) > 0,
        num_tokens >= tl.load(p_ints + INT_MAX_LENGTH),
    )


@triton.jit
def normed(p_floats, score, length):
    """The first term of `Scoring.final_score`, in float64."""
    alpha = tl.load(p_floats + FLOAT_ALPHA).to(tl.float64)
    scale = tl.load(p_floats + FLOAT_SCALE).to(tl.float64)
    base = (tl.load(p_floats + FLOAT_OFFSET).to(tl.float64) + length) / scale
    power = tl.exp(alpha * tl.log(base))
    power = tl.where(alpha == 0, 1.0, tl.where(alpha == 1, base, power))
    return score.to(tl.float64) / power


@triton.jit
def rewarded(p_floats, length):
    """The second term of `Scoring.final_score`, in float64."""
    cap = tl.load(p_floats + FLOAT_CAP).to(tl.float64)
    return tl.load(p_floats + FLOAT_REWARD).to(tl.float64) * tl.minimum(cap, length)


@triton.jit
def final_score(p_floats, score, num_tokens, is_ended):
    offset = tl.load(p_floats + FLOAT_CUT_LENGTH_OFFSET).to(tl.float64)
    length = num_tokens.to(tl.float64) + tl.where(is_ended, 0.0, offset)
    return (normed(p_floats, score, length) + rewarded(p_floats, length)).to(tl.float32)


@triton.jit
def next_length(p_ints):
    """Tokens of a row that count in n when this step is done."""
    return tl.load(p_ints + INT_DEPTH) + 1 - tl.load(p_ints + INT_SCORED_FROM)


@triton.jit
def lines_of(beams, i_slot, max_finished):
    """Return where the ints and floats of a slot stand, and those of its finished hypotheses."""
    o_finished = i_slot * max_finished * NUM_FINISHED
    p_finished_ints = beams.finished_ints + o_finished
    table = Finished(p_finished_ints, beams.finished_floats + o_finished, max_finished)
    return beams.ints + i_slot * NUM_INTS, beams.floats + i_slot * NUM_FLOATS, table


@triton.jit
def endings(step, p_ints, p_entry, o_survivor, m_survivor):
    """Return length, log-prob of EOS and EOS of survivors, if they had ended now or had before.

    `p_entry` are the places of their parents in the arrays of entries.
    """
    beams = step.beams
    m_alive = tl.load(beams.is_alive + p_entry, mask=m_survivor, other=0) != 0
    m_held = m_survivor & ~m_alive
    m_alive &= m_survivor
    held_length = tl.load(beams.ended_length + p_entry, mask=m_held, other=0)
    held_log_prob = tl.load(beams.eos_log_prob + p_entry, mask=m_held, other=0.0)
    held_eos = tl.load(beams.eos_token + p_entry, mask=m_held, other=0)
    log_prob = tl.load(step.survivors.log_prob + o_survivor, mask=m_alive, other=0.0)
    eos = tl.load(step.eos_token + o_survivor, mask=m_alive, other=0)
    length = tl.where(m_alive, next_length(p_ints), held_length)
    return length, tl.where(m_alive, log_prob, held_log_prob), tl.where(m_alive, eos, held_eos)


@triton.jit
def finish_ranks(
    step,
    listed,
    i_slot,
    begin,
    end,
    num_listed,
    best_score,
    IS_LEFT: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Add the survivors of ranks begin .. end to a list of finished hypotheses, while there are places.

    Survivors that finish at once end at the nodes of their parents. Those that are left in a beam (IS_LEFT)
    have nodes of their own, which are stored by now.

    Returns how many the list has then, and the higher of `best_score` and the best of their scores.
    """
    survivors, max_rows = step.survivors, step.numbers.max_rows
    p_ints, p_floats, _ = lines_of(step.beams, i_slot, step.max_finished)
    wants_cut = tl.load(p_ints + INT_ENDED_ONLY) == 0
    for start in range(begin, end, CHUNK):
        o_rank = start + tl.arange(0, CHUNK)
        o_survivor = tl.program_id(0).to(tl.int64) * step.numbers.capacity + o_rank
        m_rank = o_rank < end
        b_token = tl.load(survivors.token + o_survivor, mask=m_rank, other=0)
        is_ended = b_token == step.numbers.eos_id
        m_finished = m_rank & (is_ended | wants_cut)
        b_parent = tl.load(survivors.parent + o_survivor, mask=m_rank, other=0)
        p_entry = i_slot * max_rows + tl.minimum(tl.maximum(b_parent, 0), max_rows - 1)
        p_node = step.tree.row_node + p_entry
        if IS_LEFT:
            p_node = step.tree.row_node + i_slot * max_rows + o_rank - begin
        node = tl.load(p_node, mask=m_finished, other=0)
        length, log_prob, eos = endings(step, p_ints, p_entry, o_survivor, m_finished)
        length = tl.where(is_ended, length, next_length(p_ints))
        score = tl.load(survivors.score + o_survivor, mask=m_finished, other=float("-inf"))
        b_place = num_listed + exclusive_sum(m_finished.to(tl.int32))
        m_stored = m_finished & (b_place < listed.num_places)
        p_int = listed.ints + b_place.to(tl.int64) * NUM_FINISHED
        p_float = listed.floats + b_place.to(tl.int64) * NUM_FINISHED
        tl.store(p_int + FINISHED_NODE, node, mask=m_stored)
        tl.store(p_int + FINISHED_LENGTH, length, mask=m_stored)
        tl.store(p_int + FINISHED_EOS, tl.where(is_ended, eos, -1), mask=m_stored)
        tl.store(p_float + FINISHED_SCORE, score, mask=m_stored)
        tl.store(p_float + FINISHED_LOG_PROB, log_prob, mask=m_stored)
        final = final_score(p_floats, score, length, is_ended)
        tl.store(p_float + FINISHED_FINAL, final, mask=m_stored)
        num_listed += tl.sum(m_finished.to(tl.int32), 0)
        best_score = tl.maximum(best_score, tl.max(score, 0))
    return num_listed, best_score


@triton.jit
def copy_finished(to, source, b_to, b_from, m_copied):
    """Copy finished hypotheses between these places."""
    for column in tl.static_range(NUM_FINISHED):
        o_to = b_to.to(tl.int64) * NUM_FINISHED + column
        o_from = b_from.to(tl.int64) * NUM_FINISHED + column
        tl.store(to.ints + o_to, tl.load(source.ints + o_from, mask=m_copied), mask=m_copied)
        tl.store(to.floats + o_to, tl.load(source.floats + o_from, mask=m_copied), mask=m_copied)


@triton.jit
def keep_best(table, listed, num, num_kept, CHUNK: tl.constexpr):
    """Sort a list of finished hypotheses into the table, best first, equal ones in the order of the list."""
    # every thread sees the whole list
    tl.debug_barrier()
    p_final = listed.floats + FINISHED_FINAL
    for start in range(0, num, CHUNK):
        o_one = start + tl.arange(0, CHUNK)
        b_final = tl.load(p_final + o_one * NUM_FINISHED, mask=o_one < num, other=0.0)[:, None]
        b_place = tl.zeros([CHUNK], tl.int32)
        for other in range(0, num, TILE_FINALS):
            o_other = (other + tl.arange(0, TILE_FINALS))[None, :]
            b_other = tl.load(p_final + o_other * NUM_FINISHED, mask=o_other < num, other=0.0)
            is_before = (b_other == b_final) & (o_other < o_one[:, None])
            m_better = (o_other < num) & ((b_other > b_final) | is_before)
            b_place += tl.sum(m_better.to(tl.int32), 1)
        copy_finished(table, listed, b_place, o_one, (o_one < num) & (b_place < num_kept))
