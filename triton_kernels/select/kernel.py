"""The kernel of `select`."""

import triton
import triton.language as tl

from pybeam.contracts import Survivors
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant
from pybeam.triton_kernels.select.beam import Ranked, finish_beam
from pybeam.triton_kernels.select.options import (
    BAN_EOS,
    FORCED,
    IS_ENDED,
    OPTIONAL,
    PLAIN,
    Inputs,
    limit_of,
    load_given,
    num_eos,
)
from pybeam.triton_kernels.select.row import beam_of, count_live, entry_of, rank_tokens
from pybeam.triton_kernels.select.slice import LANES, Row, merge_slices, read_slice


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
    + ["p_ints", "p_floats", "p_counts", "p_has_nan", "p_scratch", "p_stats", "p_counters"]
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
    p_scratch,
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
    CHUNK: tl.constexpr,
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
    # scratch memory: for every row the delegates of its slices and two lists, for every beam two lists,
    # for every entry its row
    row_words = (num_slices * LANES + 2 * LIST).to(tl.int64)
    p_key = p_scratch + i_row * row_words
    p_list = p_key + num_slices * LANES
    # stats: (peak, log of sum) of every row, then (peak, sum) of every slice
    p_stat = p_stats + 2 * (num_rows + i_row.to(tl.int64) * num_slices)

    beam = -1
    first_row = 0
    if i_row < num_rows:
        i_slice = i_program % num_slices
        start = lead + i_row.to(tl.int64) * row_stride
        shift = (start % PACK).to(tl.int32)
        row = Row(p_logits + start // PACK * PACK, shift, num_columns, num_tiles)
        read_slice(row, i_slice, p_key + i_slice * LANES, p_stat + 2 * i_slice, PACK)
        if arrives_last(p_counters + i_row, num_slices):
            peak, log_sum = merge_slices(p_stat, num_slices)
            # a log-sum of NaN says that there is a NaN in the row
            is_plain = ((given & PLAIN) > 0) & (log_sum == log_sum)
            tl.store(p_stats + 2 * i_row, tl.where(is_plain, 0.0, peak))
            tl.store(p_stats + 2 * i_row + 1, tl.where(is_plain, 0.0, log_sum))
            # rows and entries behind the last offset are padding
            num_counted = tl.load(p_offset + num_beams)
            entry = i_row
            if has_ended:
                entry = entry_of(p_is_ended, i_row, num_counted)
            if entry < num_counted:
                i_beam = beam_of(p_offset, entry, num_beams)
                limit = limit_of(inputs, i_beam)
                forced = load_given(p_forced, i_beam, given, FORCED, -1)
                bans_eos = load_given(p_ban_eos, i_beam, given, BAN_EOS, 0).to(tl.int32) > 0
                num_banned = tl.where(bans_eos, num_eos(given), 0)
                if (limit > 0) & (forced < 0):
                    rank_tokens(
                        row,
                        p_key,
                        num_slices * LANES,
                        p_list,
                        limit,
                        num_banned,
                        inputs.eos,
                        PACK,
                        LIST,
                        CHUNK,
                    )
                begin = tl.load(p_offset + i_beam)
                end = tl.load(p_offset + i_beam + 1)
                num_before, num_live = count_live(p_is_ended, begin, entry, end, has_ended)
                if arrives_last(p_counters + num_rows + i_beam, num_live):
                    beam = i_beam
                    first_row = i_row - num_before
    else:
        i_beam = i_program - num_rows * num_slices
        begin = tl.load(p_offset + i_beam)
        end = tl.load(p_offset + i_beam + 1)
        _, num_live = count_live(p_is_ended, begin, end, end, has_ended)
        if num_live == 0:
            beam = i_beam

    if beam >= 0:
        p_beam_list = p_scratch + num_rows * row_words
        p_row_of = p_beam_list + num_beams.to(tl.int64) * (2 * LIST)
        size = num_beams.to(tl.int64) * capacity
        ranked = Ranked(p_row_of, p_stats, p_scratch + num_slices * LANES + LIST, row_words)
        survivors = Survivors(
            p_ints,
            p_ints + size,
            p_floats,
            p_floats + size,
            p_counts,
            p_counts + num_beams,
            p_has_nan,
        )
        p_list = p_beam_list + tl.cast(beam, tl.int64) * (2 * LIST)
        finish_beam(inputs, ranked, survivors, p_list, beam, first_row, capacity, LIST, CHUNK)
