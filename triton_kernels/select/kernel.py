"""The kernel of `select`."""

import triton
import triton.language as tl

from pybeam.contracts import Survivors
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.select.beam import finish_beam
from pybeam.triton_kernels.select.candidates import STAT, Logits, Scratch
from pybeam.triton_kernels.select.options import (
    BAN_EOS,
    IS_ENDED,
    OPTIONAL,
    Inputs,
    load_given,
)
from pybeam.triton_kernels.select.row import beam_of, count_live, entry_of
from pybeam.triton_kernels.select.slice import LANES, Row, read_slice


@triton.jit
def arrives_last(p_counter, num_programs):
    """Whether all other programs have arrived. Then their writes are visible; clears the counter."""
    tl.debug_barrier()
    is_last = tl.atomic_add(p_counter, 1, sem="acq_rel") == num_programs - 1
    if is_last:
        tl.store(p_counter, 0)
    return is_last


@one_variant(
    anywhere=["p_score", "p_offset", "p_width"]
    + [f"p_{name}" for name in OPTIONAL]
    + [
        "p_ints",
        "p_floats",
        "p_counts",
        "p_has_nan",
        "p_lists",
        "p_places",
        "p_stats",
        "p_counters",
    ]
)
def select_kernel(
    p_logits,
    p_score,
    p_offset,
    p_width,
    p_is_ended,
    p_max_candidates,
    p_margin,
    p_local_margin,
    p_best_finished,
    p_forced,
    p_ban_eos,
    p_ints,
    p_floats,
    p_counts,
    p_has_nan,
    p_lists,
    p_places,
    p_stats,
    p_counters,
    row_stride,
    lead,
    num_columns,
    num_rows,
    num_beams,
    num_slices,
    num_tiles,
    given,
    eos_0,
    eos_1,
    eos_2,
    eos_3,
    eos_4,
    eos_5,
    eos_6,
    eos_7,
    finishing,
    capacity,
    PACK: tl.constexpr,
    LIST: tl.constexpr,
    ROOM: tl.constexpr,
):
    await_kernels()
    inputs = Inputs(
        p_score,
        p_offset,
        p_width,
        p_is_ended,
        p_max_candidates,
        p_margin,
        p_local_margin,
        p_best_finished,
        p_forced,
        p_ban_eos,
        num_columns,
        given,
        (eos_0, eos_1, eos_2, eos_3, eos_4, eos_5, eos_6, eos_7),
        finishing,
    )
    i_program = tl.program_id(0)
    i_row = i_program // num_slices
    has_ended = (given & IS_ENDED) > 0
    logits = Logits(p_logits, lead, row_stride, num_columns, num_slices, num_tiles)
    num_groups = num_rows * (num_slices * LANES).to(tl.int64)
    p_slice_stat = p_stats + num_groups
    p_row_stat = p_slice_stat + num_rows * (2 * num_slices).to(tl.int64)
    scratch = Scratch(
        p_stats,
        p_places,
        p_slice_stat,
        p_row_stat,
        p_places + num_groups,
        p_places + num_groups + num_rows,
        p_row_stat + num_rows.to(tl.int64) * STAT,
        p_lists,
    )

    beam = -1
    first_row = 0
    num_live = 0
    if i_row < num_rows:
        # rows and entries behind the last offset are padding
        num_counted = tl.load(p_offset + num_beams)
        entry = i_row
        if has_ended:
            entry = entry_of(p_is_ended, i_row, num_counted)
        if entry < num_counted:
            i_beam = beam_of(p_offset, entry, num_beams)
            start = lead + i_row.to(tl.int64) * row_stride
            shift = (start % PACK).to(tl.int32)
            row = Row(p_logits + start // PACK * PACK, shift, num_columns, num_tiles)
            bans_eos = load_given(p_ban_eos, i_beam, given, BAN_EOS, 0).to(tl.int32) > 0
            p_peak = p_stats + i_program.to(tl.int64) * LANES
            p_stat = p_slice_stat + 2 * i_program
            read_slice(row, i_program % num_slices, p_peak, p_stat, bans_eos, inputs.eos, PACK)
            begin, end = tl.load(p_offset + i_beam), tl.load(p_offset + i_beam + 1)
            num_before, num_of_beam = count_live(p_is_ended, begin, entry, end, has_ended)
            if arrives_last(p_counters + i_beam, num_of_beam * num_slices):
                beam = i_beam
                first_row = i_row - num_before
                num_live = num_of_beam
    else:
        i_beam = i_program - num_rows * num_slices
        begin, end = tl.load(p_offset + i_beam), tl.load(p_offset + i_beam + 1)
        _, num_of_beam = count_live(p_is_ended, begin, end, end, has_ended)
        if num_of_beam == 0:
            beam = i_beam

    if beam >= 0:
        line = num_beams.to(tl.int64) * capacity
        survivors = Survivors(
            p_ints,
            p_ints + line,
            p_floats,
            p_floats + line,
            p_counts,
            p_counts + num_beams,
            p_has_nan,
        )
        finish_beam(
            inputs,
            logits,
            scratch,
            survivors,
            beam,
            first_row,
            num_live,
            capacity,
            PACK,
            LIST,
            ROOM,
        )
