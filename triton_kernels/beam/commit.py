"""`beam_commit`: survivors become the next beams, one program per source.

The new rows see what their parents saw (`tree/inherit.py`), hypotheses finish, searches stop, nodes are
appended (`tree/append.py`), and survivors replace the beam. All of a beam is read before some of it is
overwritten. `tree_append` is the same without beams.

Where the best hypotheses are kept, those that have finished before and those that finish now are put into one
list. Their ranks in it, found by counting, are their places.
"""

import triton
import triton.language as tl

from pybeam.contracts import Finishing, Survivors
from pybeam.triton_kernels.beam.arrivals import arrives_last
from pybeam.triton_kernels.beam.columns import (
    FLOAT_BEST_FINISHED,
    INT_DEPTH,
    INT_EXPANSIONS,
    INT_NUM_ENTRIES,
    INT_NUM_FINISHED,
    INT_NUM_FOUND,
    INT_NUM_ROWS,
    INT_REASON,
    INT_STEPS,
    INT_WIDTH,
    NUM_FINISHED,
    NUM_INTS,
    STOP_EMPTY_BEAM,
    STOP_ERROR,
    STOP_MAX_LENGTH,
)
from pybeam.triton_kernels.beam.finish import (
    Finished,
    Step,
    endings,
    finish_ranks,
    is_cut,
    keep_best,
    lines_of,
)
from pybeam.triton_kernels.beam.read import NUM_REPORTED
from pybeam.triton_kernels.beam.stop import decide
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.tree.append import append_nodes, take_pages
from pybeam.triton_kernels.tree.inherit import inherit
from pybeam.triton_kernels.tree.survivors import (
    LISTS,
    Numbers,
    span_of,
    survivors_anew,
    survivors_at,
)

HELD = tl.constexpr(int(Finishing.HELD))
# columns of a report that are stored at once
BLOCK_REPORTED = tl.constexpr(triton.next_power_of_2(NUM_REPORTED.value + 1))


@triton.jit
def finish_left(
    step, listed, i_slot, first, count, num_listed, KEEPS_BEST: tl.constexpr, CHUNK: tl.constexpr
):
    """Let all that is left in a beam finish as it is."""
    p_ints, p_floats, table = lines_of(step.beams, i_slot, step.max_finished)
    num_found = tl.load(p_ints + INT_NUM_FOUND) - num_listed
    best_score = tl.load(p_floats + FLOAT_BEST_FINISHED)
    num_listed, best_score = finish_ranks(
        step, listed, i_slot, first, count, num_listed, best_score, True, CHUNK
    )
    num_finished = num_listed
    if KEEPS_BEST:
        num_finished = tl.minimum(num_listed, tl.load(p_ints + INT_WIDTH))
        keep_best(table, listed, num_listed, num_finished, CHUNK)
    # every thread has read the counts before one overwrites them
    tl.debug_barrier()
    tl.store(p_ints + INT_NUM_FINISHED, num_finished)
    tl.store(p_ints + INT_NUM_FOUND, num_found + num_listed)
    tl.store(p_floats + FLOAT_BEST_FINISHED, best_score)


@triton.jit
def replace_beam(
    step,
    rows,
    p_ints,
    i_slot,
    reason,
    num_entries,
    num_rows,
    HOLDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """Make entries of the survivors that have not finished. HOLDS: some of them may have ended."""
    beams, max_rows = step.beams, step.numbers.max_rows
    o_survivor, m_row, m_live, b_parent = rows
    o_row = tl.arange(0, BLOCK_ROWS)
    p_new = i_slot * max_rows + o_row
    b_score = tl.load(step.survivors.score + o_survivor, mask=m_row)
    if HOLDS:
        p_entry = i_slot * max_rows + tl.maximum(b_parent, 0)
        b_length, b_log_prob, b_eos = endings(step, p_ints, p_entry, o_survivor, m_row)
    expansions = tl.load(p_ints + INT_EXPANSIONS) + tl.load(p_ints + INT_NUM_ROWS)
    steps, depth = tl.load(p_ints + INT_STEPS) + 1, tl.load(p_ints + INT_DEPTH) + 1
    # every thread has read the beam before one overwrites it
    tl.debug_barrier()
    tl.store(beams.is_alive + p_new, m_live, mask=o_row < max_rows)
    tl.store(beams.score + p_new, b_score, mask=m_row)
    if HOLDS:
        tl.store(beams.ended_length + p_new, b_length, mask=m_row)
        tl.store(beams.eos_log_prob + p_new, b_log_prob, mask=m_row)
        tl.store(beams.eos_token + p_new, b_eos, mask=m_row)
    tl.store(p_ints + INT_REASON, reason)
    tl.store(p_ints + INT_NUM_ROWS, num_rows)
    tl.store(p_ints + INT_DEPTH, depth)
    tl.store(p_ints + INT_STEPS, steps)
    tl.store(p_ints + INT_EXPANSIONS, expansions)
    tl.store(p_ints + INT_NUM_ENTRIES, num_entries)


@triton.jit
def report(tree, beams, i_slot, p_report, i_source):
    """Write what the host must know of a source, and the last program what it must know of all."""
    # what one thread wrote all can read
    tl.debug_barrier()
    o_column = tl.arange(0, BLOCK_REPORTED)
    b_int = tl.load(
        beams.ints + i_slot * NUM_INTS + o_column, mask=o_column < NUM_REPORTED, other=0
    )
    b_line = tl.where(o_column == NUM_REPORTED, tl.load(tree.num_pages + i_slot), b_int)
    p_line = p_report + 1 + i_source * (NUM_REPORTED + 1)
    tl.store(p_line + o_column, b_line, mask=o_column <= NUM_REPORTED)
    if arrives_last(beams):
        tl.store(p_report, tl.load(tree.num_free_pages))


@one_variant(anywhere=[*LISTS, "p_eos_token", "p_source", "p_target", "p_live", "p_report"])
def commit_kernel(
    tree,
    p_token,
    p_parent,
    p_score,
    p_log_prob,
    p_count,
    p_num_finished,
    p_has_nan,
    p_slot,
    eos_id,
    capacity,
    num_slots,
    max_nodes,
    max_rows,
    max_live,
    max_free,
    max_pages,
    max_path,
    p_place,  # see `inherit`
    beams,  # None: the tree grows, and that is all
    p_eos_token,
    p_scratch_ints,
    p_scratch_floats,
    p_source,
    p_target,
    p_live,
    p_report,
    max_finished,
    num_scratch,
    MASK_WORDS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
    CHUNK: tl.constexpr,
    FINISHING: tl.constexpr = 0,
    KEEPS_BEST: tl.constexpr = False,
    TOP: tl.constexpr = 0,
    CERTIFICATE: tl.constexpr = 0,
):
    """One program per source."""
    await_kernels()
    survivors = Survivors(
        p_token, p_parent, p_score, p_log_prob, p_count, p_num_finished, p_has_nan
    )
    numbers = Numbers(
        eos_id, capacity, num_slots, max_nodes, max_rows, max_live, max_free, max_pages, max_path
    )
    i_source = tl.program_id(0)
    # loads come first, so that they wait together
    i_slot = tl.load(p_slot + i_source).to(tl.int64)
    if beams is not None:
        i_live = tl.load(p_live + i_source).to(tl.int64)
    span = span_of(survivors, numbers)
    o_row = tl.arange(0, BLOCK_ROWS)
    p_move = i_source.to(tl.int64) * max_rows + o_row
    if (i_slot < 0) | (i_slot >= num_slots):
        if beams is not None:
            tl.store(p_source + p_move, -1, mask=o_row < max_rows)
            tl.store(p_target + p_move, -1, mask=o_row < max_rows)
            report(tree, beams, i_live, p_report, i_source)
        return
    rows = survivors_at(survivors, numbers, span, o_row)
    num_rows = tl.sum(rows[2].to(tl.int32), 0)
    counts, needed = inherit(
        tree, survivors, numbers, span, rows, i_slot, p_place, MASK_WORDS, BLOCK_ROWS, BLOCK_CELLS
    )
    pages = take_pages(tree, needed)
    if beams is not None:
        step = Step(tree, beams, survivors, p_eos_token, numbers, max_finished)
        first = tl.load(survivors.num_finished + i_source)
        count = tl.minimum(tl.load(survivors.count + i_source), capacity)
        p_ints, _, listed = lines_of(beams, i_slot, max_finished)
        if KEEPS_BEST:
            o_list = i_source.to(tl.int64) * num_scratch * NUM_FINISHED
            listed = Finished(p_scratch_ints + o_list, p_scratch_floats + o_list, num_scratch)
        # an empty slot may be named many times and stays as it is
        moves = tl.load(p_ints + INT_NUM_ENTRIES) > 0
        reason, num_listed = 0, 0
        if moves:
            reason, num_listed = decide(
                step,
                listed,
                i_slot,
                first,
                count,
                num_rows,
                FINISHING,
                KEEPS_BEST,
                TOP,
                CERTIFICATE,
                CHUNK,
            )
    if KEEPS_BEST or (beams is not None and MASK_WORDS == 0):
        # the lists of the best and paths need the registers
        rows = survivors_anew(survivors, numbers, o_row)
    # every thread sees the cells that are free now
    tl.debug_barrier()
    append_nodes(
        tree, survivors, numbers, rows, num_rows, i_slot, counts, pages, MASK_WORDS, BLOCK_ROWS
    )
    if beams is not None:
        if moves:
            ends = (reason == STOP_EMPTY_BEAM) | (reason == STOP_MAX_LENGTH)
            if KEEPS_BEST:
                # some of what is left may be among the best
                ends |= is_cut(p_ints) & (reason != STOP_ERROR)
            # every thread sees the new nodes
            tl.debug_barrier()
            if ends:
                count = tl.minimum(count, first + max_rows)
                finish_left(step, listed, i_slot, first, count, num_listed, KEEPS_BEST, CHUNK)
            new = rows
            if KEEPS_BEST:
                new = survivors_anew(survivors, numbers, o_row)
            holds: tl.constexpr = FINISHING == HELD
            num_entries = tl.maximum(span[1], 0)
            replace_beam(
                step, new, p_ints, i_slot, reason, num_entries, num_rows, holds, BLOCK_ROWS
            )
        first_entry = (i_slot * max_rows).to(tl.int32)
        _, _, m_live, b_parent = rows
        b_source = tl.where(m_live, first_entry + tl.maximum(b_parent, 0), -1)
        tl.store(p_source + p_move, b_source, mask=o_row < max_rows)
        b_target = tl.where(m_live, first_entry + o_row, -1)
        tl.store(p_target + p_move, b_target, mask=o_row < max_rows)
        report(tree, beams, i_live, p_report, i_source)
