"""`select` in one launch: programs read rows in slices, and the last one to finish goes on.

A program reads one slice of one row. The last program of a beam ranks the beam's candidates and applies
the rules. A beam in which no row moves has a program of its own. Programs leave their results in scratch
memory and count arrivals. None waits for another, and results are combined in an order that does not
depend on timing.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from pybeam.contracts import MASK_WIDTH, MAX_CANDIDATES_ON_GPU, SelectOptions, Survivors
from pybeam.triton_kernels.counters import counters
from pybeam.triton_kernels.select.candidates import STAT, TILE
from pybeam.triton_kernels.select.kernel import select_kernel
from pybeam.triton_kernels.select.options import MAX_EOS, MORE_EOS, OPTIONAL, PLAIN
from pybeam.triton_kernels.select.slice import DEPTH, LANES, MAX_SLICES

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PACK_BYTES = 16
# four programs of 128 threads share a multiprocessor, which is enough loads in flight
REGISTERS = 128
# of a multiprocessor
ALL_REGISTERS = 1 << 16
# enough programs to keep the widest GPU busy several times over
PROGRAMS = 2048


def select(
    logits: Tensor, score: Tensor, offset: Tensor, width: Tensor, options: SelectOptions
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
    num_groups = num_rows * num_slices * LANES.value
    new_lists = torch.empty(
        num_beams, 2 * (lists.room + lists.size), dtype=torch.int64, device=device
    )
    places = torch.empty(num_groups + num_rows + score.numel(), dtype=torch.int32, device=device)
    num_stats = num_groups + num_rows * (2 * num_slices + STAT.value) + num_beams * 2 * lists.size
    stats = torch.empty(num_stats, dtype=torch.float32, device=device)
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
        new_lists,
        places,
        stats,
        counters(num_beams, device),
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
        LIST=lists.size,
        ROOM=lists.room,
        num_warps=lists.num_warps,
        maxnreg=min(REGISTERS, ALL_REGISTERS // (32 * lists.num_warps)),
    )
    return survivors


class Lists(NamedTuple):
    """The sizes of the lists in which a program ranks candidates, and the warps of a program."""

    size: int  # the most that are wanted
    room: int  # for those that may be among the best
    num_warps: int


ROOM = 2 * TILE.value
# candidates of beams of up to 128 rows
NARROW = Lists(256, ROOM, LANES.value // 32)


def lists_for(options: SelectOptions) -> Lists:
    """Return lists for all beams whose survivors fit in the capacity."""
    if options.most_places <= MASK_WIDTH and options.most_candidates <= NARROW.size:
        return NARROW
    most = triton.next_power_of_2(max(options.most_candidates, 2 * NARROW.size))
    size = min(most, MAX_CANDIDATES_ON_GPU)
    # sixteen bins for each thread
    return Lists(size, 2 * size + ROOM, min(32, max(NARROW.num_warps, size // 256)))


def slices(num_rows: int, num_columns: int, pack: int) -> tuple[int, int]:
    """How many programs read a row, and how many tiles each of them reads."""
    # an unaligned row begins inside its first pack
    num_tiles = triton.cdiv(num_columns + pack - 1, pack * LANES.value * DEPTH.value)
    most = min(MAX_SLICES.value, max(1, PROGRAMS // max(1, num_rows)))
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
