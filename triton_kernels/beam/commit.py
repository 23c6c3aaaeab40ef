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
from pybeam.triton_kernels.arithmetic import exclusive_sum
from pybeam.triton_kernels.beam.arrivals import clear_arrivals, count_arrival
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
    NUM_FINISHED,
    NUM_INTS,
    STOP_EMPTY_BEAM,
    STOP_ERROR,
    STOP_MAX_LENGTH,
)
from pybeam.triton_kernels.beam.finish import (
    Finished,
    Scratch,
    Step,
    beam_of,
    endings,
    finish_ranks,
    keep_best,
    lines_of,
)
from pybeam.triton_kernels.beam.read import NUM_REPORTED
from pybeam.triton_kernels.beam.stop import decide
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.tree.append import append_nodes, nodes_before, take_pages
from pybeam.triton_kernels.tree.inherit import inherit
from pybeam.triton_kernels.tree.survivors import (
    LISTS,
    Numbers,
    ranks_of,
    span_of,
    survivors_anew,
    survivors_at,
)

HELD = tl.constexpr(int(Finishing.HELD))
# columns of a report that are stored at once
BLOCK_REPORTED = tl.constexpr(triton.next_power_of_2(NUM_REPORTED.value + 1))


@triton.jit
def finish_left(
    step,
    listed,
    width,
    i_slot,
    first,
    count,
    num_listed,
    best_score,
    KEEPS_BEST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Let all that is left in a beam finish as it is.

    Returns how many hypotheses are listed, how many the beam keeps, and the best score.
    """
    # every thread sees the new nodes
    tl.debug_barrier()
    num_listed, best_score = finish_ranks(
        step, listed, i_slot, first, count, num_listed, best_score, True, CHUNK
    )
    num_finished = num_listed
    if KEEPS_BEST:
        num_finished = tl.minimum(num_listed, width)
        _, _, table = lines_of(step.beams, i_slot, step.max_finished)
        keep_best(table, listed, num_listed, num_finished, CHUNK)
    # every thread has read the entries before one overwrites them
    tl.debug_barrier()
    return num_listed, num_finished, best_score


@triton.jit
def replace_entries(
    step, rows, b_score, p_ints, i_slot, HOLDS: tl.constexpr, BLOCK_ROWS: tl.constexpr
):
    """Make entries of the survivors that have not finished. HOLDS: some of them may have ended."""
    beams, max_rows = step.beams, step.numbers.max_rows
    o_survivor, m_row, m_live, b_parent = rows
    o_row = tl.arange(0, BLOCK_ROWS)
    p_new = i_slot * max_rows + o_row
    if HOLDS:
        p_entry = i_slot * max_rows + tl.maximum(b_parent, 0)
        b_length, b_log_prob, b_eos = endings(step, p_ints, p_entry, o_survivor, m_row)
        # every thread has read the beam before one overwrites it
        tl.debug_barrier()
        tl.store(beams.ended_length + p_new, b_length, mask=m_row)
        tl.store(beams.eos_log_prob + p_new, b_log_prob, mask=m_row)
        tl.store(beams.eos_token + p_new, b_eos, mask=m_row)
    tl.store(beams.is_alive + p_new, m_live, mask=o_row < max_rows)
    tl.store(beams.score + p_new, b_score, mask=m_row)


@triton.jit
def changed_line(b_line, beam, reason, num_rows, num_finished):
    """The line of a slot when its beam has done a step."""
    o_column = tl.arange(0, BLOCK_REPORTED)
    b_line += tl.where((o_column == INT_DEPTH) | (o_column == INT_STEPS), 1, 0)
    b_line += tl.where(o_column == INT_EXPANSIONS, beam.num_rows, 0)
    b_line = tl.where(o_column == INT_REASON, reason, b_line)
    b_line = tl.where(o_column == INT_NUM_ROWS, num_rows, b_line)
    return tl.where(o_column == INT_NUM_FINISHED, num_finished, b_line)


@triton.jit
def count_free_pages(tree, beams, needed, BLOCK: tl.constexpr):
    """When this program has taken what it needs: count free pages, or leave that to the last program.

    Returns how many are free if there is no other program, and else what `count_arrival` does.
    """
    num_free = tl.load(tree.num_free_pages, mask=tl.num_programs(0) == 1)
    m_one = (tl.arange(0, BLOCK) == 0) & (tl.num_programs(0) > 1)
    if needed > 0:
        b_before = count_arrival(beams, m_one, BLOCK)
    else:
        # no page has been taken that the last program must know of
        b_before = count_arrival(beams, m_one, BLOCK, False)
    return num_free, b_before


@triton.jit
def report(tree, beams, p_report, b_line, num_pages, counted, BLOCK: tl.constexpr):
    """Write what the host must know of a source, and the last program what it must know of all.

    `counted` is what `count_free_pages` has returned.
    """
    num_free, b_before = counted
    o_column = tl.arange(0, BLOCK_REPORTED)
    p_line = p_report + 1 + tl.program_id(0) * (NUM_REPORTED + 1)
    b_line = tl.where(o_column == NUM_REPORTED, num_pages, b_line)
    tl.store(p_line + o_column, b_line, mask=o_column <= NUM_REPORTED)
    if tl.num_programs(0) == 1:
        tl.store(p_report, num_free)
    else:
        o_one = tl.arange(0, BLOCK)
        m_last = (o_one == 0) & (b_before == tl.num_programs(0) - 1)
        # others have taken pages, so a copy of the number may be old
        b_free = tl.load(tree.num_free_pages + o_one, mask=m_last, volatile=True)
        tl.store(p_report + o_one, b_free, mask=m_last)
        clear_arrivals(beams, m_last, BLOCK)


@triton.jit
def commit_source(
    step,
    scratch,
    ranks,  # see `ranks_of`
    rows,  # see `survivors_at`
    i_slot,
    MASK_WORDS: tl.constexpr,
    BLOCK_CELLS: tl.constexpr,
    CHUNK: tl.constexpr,
    FINISHING: tl.constexpr,
    KEEPS_BEST: tl.constexpr,
    TOP: tl.constexpr,
    CERTIFICATE: tl.constexpr,
):
    """Make the next beam of a source, and return what a report says of it: a line, and its pages."""
    i_source = tl.program_id(0)
    tree, beams, survivors, _, numbers, max_finished = step
    span, m_live = span_of(numbers, ranks), rows[2]
    BLOCK_ROWS: tl.constexpr = m_live.shape[0]
    # loads come first, so that they wait together
    if beams is not None:
        o_column = tl.arange(0, BLOCK_REPORTED)
        p_ints, m_column = beams.ints + i_slot * NUM_INTS, o_column < NUM_REPORTED
        beam, b_line = beam_of(beams, i_slot), tl.load(p_ints + o_column, mask=m_column, other=0)
        has_nan = tl.load(survivors.has_nan + i_source) != 0
    num_rows, b_rank = tl.sum(m_live.to(tl.int32), 0), exclusive_sum(m_live.to(tl.int32))
    places = scratch.place
    counts, needed = inherit(
        tree, survivors, numbers, span, rows, i_slot, places, MASK_WORDS, BLOCK_ROWS, BLOCK_CELLS
    )
    pages = take_pages(tree, needed)
    if beams is not None:
        counted = count_free_pages(tree, beams, needed, BLOCK_CELLS)
        first, count = ranks
        _, p_floats, listed = lines_of(beams, i_slot, max_finished)
        if KEEPS_BEST:
            num_places = scratch.num_places
            o_list = i_source.to(tl.int64) * num_places * NUM_FINISHED
            listed = Finished(scratch.ints + o_list, scratch.floats + o_list, num_places)
        reason, num_listed, num_finished, num_found = 0, 0, 0, 0
        best_score = beam.best_score
        if beam.moves:
            reason, num_listed, num_finished, num_found, best_score = decide(
                step,
                listed,
                beam,
                has_nan,
                i_slot,
                ranks,
                num_rows,
                FINISHING,
                KEEPS_BEST,
                TOP,
                CERTIFICATE,
                CHUNK,
            )
    if KEEPS_BEST or (beams is not None and MASK_WORDS == 0):
        # the lists of the best and paths need the registers
        rows = survivors_anew(survivors, numbers, tl.arange(0, BLOCK_ROWS))
    b_parent_node = nodes_before(tree, numbers, rows, i_slot)
    # every thread sees the cells that are free now, and has read what is overwritten
    tl.debug_barrier()
    if beams is not None:
        b_score = tl.load(survivors.score + rows[0], mask=rows[1])
    num_pages = append_nodes(
        tree,
        survivors,
        numbers,
        rows,
        num_rows,
        i_slot,
        counts,
        b_rank,
        b_parent_node,
        pages,
        MASK_WORDS,
        BLOCK_ROWS,
    )
    if beams is not None:
        if beam.moves:
            ends = (reason == STOP_EMPTY_BEAM) | (reason == STOP_MAX_LENGTH)
            if KEEPS_BEST:
                # some of what is left may be among the best
                ends |= beam.is_cut & (reason != STOP_ERROR)
            if ends:
                num_all, num_finished, best_score = finish_left(
                    step,
                    listed,
                    beam.width,
                    i_slot,
                    first,
                    tl.minimum(count, first + numbers.max_rows),
                    num_listed,
                    best_score,
                    KEEPS_BEST,
                    CHUNK,
                )
                num_found += num_all - num_listed
            if KEEPS_BEST:
                rows = survivors_anew(survivors, numbers, tl.arange(0, BLOCK_ROWS))
            replace_entries(step, rows, b_score, p_ints, i_slot, FINISHING == HELD, BLOCK_ROWS)
            b_line = changed_line(b_line, beam, reason, num_rows, num_finished)
            tl.store(p_ints + o_column, b_line, mask=m_column)
            tl.store(p_ints + INT_NUM_ENTRIES, tl.maximum(span[1], 0))
            tl.store(p_ints + INT_NUM_FOUND, num_found)
            tl.store(p_floats + FLOAT_BEST_FINISHED, best_score)
        return b_line, num_pages, counted


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
    o_row = tl.arange(0, BLOCK_ROWS)
    # loads come first, so that they wait together
    i_slot = tl.load(p_slot + i_source).to(tl.int64)
    if beams is not None:
        i_live = tl.load(p_live + i_source).to(tl.int64)
    ranks = ranks_of(survivors, numbers)
    rows = survivors_at(survivors, numbers, span_of(numbers, ranks), o_row)
    is_slot = (i_slot >= 0) & (i_slot < num_slots)
    if is_slot:
        done = commit_source(
            Step(tree, beams, survivors, p_eos_token, numbers, max_finished),
            Scratch(p_scratch_ints, p_scratch_floats, num_scratch, p_place),
            ranks,
            rows,
            i_slot,
            MASK_WORDS,
            BLOCK_CELLS,
            CHUNK,
            FINISHING,
            KEEPS_BEST,
            TOP,
            CERTIFICATE,
        )
        if beams is not None:
            b_line, num_pages, counted = done
    elif beams is not None:
        b_line, num_pages = tl.zeros([BLOCK_REPORTED], tl.int32), 0
        counted = count_free_pages(tree, beams, 0, BLOCK_CELLS)
    if beams is not None:
        # where the slot is another one, the live one has stayed as it was
        if i_slot != i_live:
            o_column = tl.arange(0, BLOCK_REPORTED)
            p_int = beams.ints + i_live * NUM_INTS + o_column
            b_line = tl.load(p_int, mask=o_column < NUM_REPORTED, other=0)
            num_pages = tl.load(tree.num_pages + i_live)
        if KEEPS_BEST or MASK_WORDS == 0:
            rows = survivors_anew(survivors, numbers, o_row)
        _, _, m_live, b_parent = rows
        p_move = i_source.to(tl.int64) * max_rows + o_row
        first_entry = (i_slot * max_rows).to(tl.int32)
        b_source = tl.where(m_live & is_slot, first_entry + tl.maximum(b_parent, 0), -1)
        tl.store(p_source + p_move, b_source, mask=o_row < max_rows)
        b_target = tl.where(m_live & is_slot, first_entry + o_row, -1)
        tl.store(p_target + p_move, b_target, mask=o_row < max_rows)
        report(tree, beams, p_report, b_line, num_pages, counted, BLOCK_CELLS)
