"""`select` in one launch: programs read rows in slices, and the last one to finish goes on.

A program reads one slice of one row. The last program of a row ranks the row's best tokens. The last
row of a beam ranks the beam's candidates and applies the rules. A beam in which no row moves has a
program of its own. Programs leave their results in a scratch buffer and count arrivals. None waits for
another, and results are combined in an order that does not depend on timing.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pybeam.contracts import MASK_WIDTH, MAX_CANDIDATES_ON_GPU, SelectOptions, Survivors
from pybeam.triton_kernels.counters import counters
from pybeam.triton_kernels.dependent_launch import await_kernels, begins_early
from pybeam.triton_kernels.select_beam import finish_beam
from pybeam.triton_kernels.select_options import (
    BAN_EOS,
    FORCED,
    IS_ENDED,
    MAX_EOS,
    MORE_EOS,
    OPTIONAL,
    PLAIN,
    limit_of,
    load_given,
    num_eos,
)
from pybeam.triton_kernels.select_row import beam_of, count_live, entry_of, rank_tokens
from pybeam.triton_kernels.select_slice import DEPTH, LANES, merge_slices, read_slice

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PACK_BYTES = 16
# the most programs that read one row: one variant of the kernel for each
MAX_SLICES = (8, 32)
# four programs of 128 threads share a multiprocessor, which is enough loads in flight
REGISTERS = 128
# of a multiprocessor
ALL_REGISTERS = 1 << 16
# enough programs to keep the widest GPU busy several times over
PROGRAMS = 2048


@triton.jit
def arrives_last(p_counter, num_programs):
    """Whether all other programs have arrived. Then their writes are visible; clears the counter."""
    tl.debug_barrier()
    is_last = tl.atomic_add(p_counter, 1, sem="acq_rel") == num_programs - 1
    if is_last:
        tl.store(p_counter, 0)
    return is_last


@begins_early
@triton.jit(
    # one variant for all shapes and options
    do_not_specialize=[
        "row_stride",
        "lead",
        "num_columns",
        "num_rows",
        "num_beams",
        "num_slices",
        "num_tiles",
        "given",
        *[f"eos_{i}" for i in range(MAX_EOS.value)],
        "finishing",
        "capacity",
    ],
    do_not_specialize_on_alignment=["p_score", "p_offset", "p_width"]
    + [f"p_{name}" for name in OPTIONAL]
    + [
        "p_more_eos",
        "p_ints",
        "p_floats",
        "p_counts",
        "p_has_nan",
        "p_scratch",
        "p_stats",
        "p_counters",
    ],
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
    MAX_SLICES: tl.constexpr,
    LIST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    await_kernels()
    eos = (eos_0, eos_1, eos_2, eos_3, eos_4, eos_5, eos_6, eos_7)
    i_program = tl.program_id(0)
    i_row = i_program // num_slices
    has_ended = (given & IS_ENDED) > 0
    # scratch memory: for every row the delegates of its slices and two lists, for every beam two lists,
    # for every entry its row
    row_words = (num_slices * LANES + 2 * LIST).to(tl.int64)
    p_key = p_scratch + i_row * row_words
    p_list = p_key + num_slices * LANES
    p_beam_list = p_scratch + num_rows * row_words
    p_row_of = p_beam_list + num_beams.to(tl.int64) * (2 * LIST)
    # stats: (peak, log of sum) of every row, then (peak, sum) of every slice
    p_stat = p_stats + 2 * (num_rows + i_row.to(tl.int64) * num_slices)

    beam = -1
    first_row = 0
    if i_row < num_rows:
        i_slice = i_program % num_slices
        start = lead + i_row.to(tl.int64) * row_stride
        shift = (start % PACK).to(tl.int32)
        p_pack0 = p_logits + start // PACK * PACK
        slice_packs = num_tiles * (DEPTH * LANES)
        read_slice(
            p_pack0,
            i_slice * slice_packs,
            (i_slice + 1) * slice_packs,
            shift,
            num_columns,
            p_key + i_slice * LANES,
            p_stat + 2 * i_slice,
            PACK,
        )
        if arrives_last(p_counters + i_row, num_slices):
            peak, log_sum = merge_slices(p_stat, num_slices, MAX_SLICES)
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
                limit = limit_of(p_width, p_max_candidates, i_beam, num_columns, given, finishing)
                forced = load_given(p_forced, i_beam, given, FORCED, -1)
                bans_eos = load_given(p_ban_eos, i_beam, given, BAN_EOS, 0).to(tl.int32) > 0
                num_banned = tl.where(bans_eos, num_eos(given), 0)
                if (limit > 0) & (forced < 0):
                    rank_tokens(
                        p_pack0,
                        shift,
                        num_columns,
                        p_key,
                        num_slices * LANES,
                        p_list,
                        p_list + LIST,
                        limit,
                        num_banned,
                        eos,
                        num_tiles,
                        PACK,
                        MAX_SLICES * LANES,
                        LIST,
                        CHUNK,
                    )
                begin = tl.load(p_offset + i_beam)
                end = tl.load(p_offset + i_beam + 1)
                num_before = count_live(p_is_ended, begin, entry, has_ended)
                num_live = count_live(p_is_ended, begin, end, has_ended)
                if arrives_last(p_counters + num_rows + i_beam, num_live):
                    beam = i_beam
                    first_row = i_row - num_before
    else:
        i_beam = i_program - num_rows * num_slices
        begin = tl.load(p_offset + i_beam)
        end = tl.load(p_offset + i_beam + 1)
        if count_live(p_is_ended, begin, end, has_ended) == 0:
            beam = i_beam

    if beam >= 0:
        size = num_beams.to(tl.int64) * capacity
        finish_beam(
            p_score,
            p_offset,
            p_width,
            p_is_ended,
            p_max_candidates,
            p_margin,
            p_local_margin,
            p_best_finished,
            p_forced,
            p_ints,
            p_ints + size,
            p_floats,
            p_floats + size,
            p_counts,
            p_counts + num_beams,
            p_has_nan,
            p_row_of,
            p_stats,
            p_scratch + num_slices * LANES + LIST,
            row_words,
            p_beam_list + tl.cast(beam, tl.int64) * (2 * LIST),
            beam,
            first_row,
            num_columns,
            given,
            eos,
            finishing,
            capacity,
            LIST,
            CHUNK,
        )


def select(
    logits: Tensor,
    score: Tensor,
    offset: Tensor,
    width: Tensor,
    options: SelectOptions,
) -> Survivors:
    """See `pybeam.ops.select`; reads nothing back, so more survivors than the capacity are cut off.

    Logits [R, V] are float32, bfloat16 or float16, with the last stride 1. Raises ValueError for others.
    """
    if logits.dtype not in DTYPES:
        raise ValueError(
            f"`logits` must be float32, bfloat16 or float16 on this backend, but is {logits.dtype}; "
            "convert it, or use backend='reference'"
        )
    num_rows, num_columns = logits.shape
    capacity, eos_ids = options.capacity, options.eos_ids
    num_beams, device = width.numel(), width.device
    ints = torch.empty(2, num_beams, capacity, dtype=torch.int32, device=device)
    floats = torch.empty(2, num_beams, capacity, dtype=torch.float32, device=device)
    counts = torch.empty(2, num_beams, dtype=torch.int32, device=device)
    has_nan = torch.empty(num_beams, dtype=torch.bool, device=device)
    results = (*ints, *floats, *counts, has_nan)
    survivors = Survivors(*results)
    if num_beams == 0:
        return survivors

    absent = dict.fromkeys(OPTIONAL, score) | {
        "is_ended": has_nan,
        "ban_eos": has_nan,
        "max_candidates": width,
        "forced": width,
    }
    values = {name: getattr(options, name) for name in OPTIONAL}
    given = sum(1 << bit for bit, value in enumerate(values.values()) if value is not None)
    given += 0 if options.normalise else PLAIN.value
    given += len(eos_ids) - 1 << MORE_EOS.value
    pack = PACK_BYTES // logits.element_size()
    num_slices, num_tiles = slices(num_rows, num_columns, pack)
    lists = lists_for(options)
    scratch = torch.empty(
        num_rows * (num_slices * LANES.value + 2 * lists.size)
        + num_beams * 2 * lists.size
        + score.numel(),
        dtype=torch.int64,
        device=device,
    )
    stats = torch.empty(2 * num_rows * (1 + num_slices), dtype=torch.float32, device=device)
    base, lead, (row_stride, _) = aligned(logits)
    select_kernel[(num_rows * num_slices + num_beams,)](
        base,
        score,
        offset,
        width,
        *(absent[name] if value is None else value for name, value in values.items()),
        ints,
        floats,
        counts,
        has_nan,
        scratch,
        stats,
        counters(num_rows + num_beams, device),
        row_stride,
        lead,
        num_columns,
        num_rows,
        num_beams,
        num_slices,
        num_tiles,
        given,
        # the first id fills the unused places
        *eos_ids,
        *[eos_ids[0]] * (MAX_EOS.value - len(eos_ids)),
        int(options.finishing),
        capacity,
        PACK=pack,
        MAX_SLICES=next(most for most in MAX_SLICES if num_slices <= most),
        LIST=lists.size,
        CHUNK=lists.chunk,
        num_warps=lists.num_warps,
        maxnreg=min(REGISTERS, ALL_REGISTERS // (32 * lists.num_warps)),
    )
    return survivors


class Lists(NamedTuple):
    """The sizes of the lists in which programs rank keys, and the warps of a program."""

    size: int
    chunk: int  # keys that are compared at once, those of the list included
    num_warps: int


# candidates of beams of up to 128 rows
NARROW = Lists(256, 1024, LANES.value // 32)


def lists_for(options: SelectOptions) -> Lists:
    """Return lists for all beams whose survivors fit in the capacity."""
    # a row ranks the tokens that end a hypothesis beside the best ones
    most = max(options.most_candidates, options.most_places + 2 * MAX_EOS.value)
    if options.most_places <= MASK_WIDTH and options.most_candidates <= NARROW.size:
        return NARROW
    size = min(triton.next_power_of_2(max(most, 2 * NARROW.size)), MAX_CANDIDATES_ON_GPU)
    # sixteen keys of a chunk for each thread
    return Lists(size, 2 * size, min(32, max(NARROW.num_warps, size // 256)))


def slices(num_rows: int, num_columns: int, pack: int) -> tuple[int, int]:
    """How many programs read a row, and how many tiles each of them reads."""
    # an unaligned row begins inside its first pack
    num_tiles = triton.cdiv(num_columns + pack - 1, pack * LANES.value * DEPTH.value)
    most = min(MAX_SLICES[-1], max(1, PROGRAMS // max(1, num_rows)))
    slice_tiles = max(1, triton.cdiv(num_tiles, most))
    return triton.cdiv(num_tiles, slice_tiles), slice_tiles


def aligned(logits: Tensor) -> tuple[Tensor, int, tuple[int, ...]]:
    """Return a tensor that begins at a multiple of 16 bytes, where in it logits begin, and their strides."""
    lead = logits.data_ptr() % PACK_BYTES // logits.element_size()
    if lead == 0:
        return logits, 0, logits.stride()
    if logits.storage_offset() < lead:
        return aligned(logits.clone())
    first = logits.storage_offset() - lead
    return logits.as_strided((1,), (1,), first), lead, logits.stride()
