"""`beam_plan`, `beam_read` and `beam_report`: who moves, what a step needs of them, what the host needs."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from pybeam.triton_kernels.beam_columns import (
    FLOAT_BEST_FINISHED,
    FLOAT_LOCAL_MARGIN,
    FLOAT_MARGIN,
    INT_DEPTH,
    INT_MAX_CANDIDATES,
    INT_MIN_LENGTH,
    INT_NUM_EARLY_WIDTHS,
    INT_NUM_ENTRIES,
    INT_NUM_FOUND,
    INT_NUM_ROWS,
    INT_PREFIX_LENGTH,
    INT_REASON,
    INT_SCORED_FROM,
    INT_WAITED,
    INT_WIDTH,
    NUM_FLOATS,
    NUM_INTS,
    STOP_RUNNING,
)
from pybeam.triton_kernels.dependent_launch import await_kernels, begins_early
from pybeam.triton_kernels.tree_survivors import exclusive_sum

# the first columns
NUM_REPORTED = INT_WAITED
BLOCK_SOURCES = tl.constexpr(128)
# sources that one is compared with at a time
TILE_SOURCES = tl.constexpr(32)
BLOCK_REPORTED = 32
MAX_KEY = tl.constexpr(2**31 - 1)
MIN_KEY = tl.constexpr(-(2**31))
# entries of a beam that one warp reads
WARP_ENTRIES = 256


@begins_early
@triton.jit(
    do_not_specialize=["num_sources", "most_rows", "max_wait"],
    do_not_specialize_on_alignment=[
        "p_slot",
        "p_key",
        "p_rows",
        "p_waited",
        "p_moved",
        "p_moved_rows",
    ],
)
def plan_kernel(
    p_ints,
    p_slot,
    p_key,
    p_rows,
    p_waited,
    p_moved,
    p_moved_rows,
    num_sources,
    most_rows,
    max_wait,
    ORDER: tl.constexpr,
    ONLY_LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for all sources. The rows of those that come first are counted, not sorted."""
    await_kernels()
    o_source = tl.arange(0, BLOCK)
    least = MAX_KEY
    if ONLY_LEAST:
        for start in range(0, num_sources, BLOCK):
            m_source = start + o_source < num_sources
            i_slot = tl.load(p_slot + start + o_source, mask=m_source, other=0).to(tl.int64)
            p_line = p_ints + i_slot * NUM_INTS
            reason = tl.load(p_line + INT_REASON, mask=m_source, other=0)
            num_rows = tl.load(p_line + INT_NUM_ROWS, mask=m_source, other=0)
            depth = tl.load(p_line + INT_DEPTH, mask=m_source, other=0)
            b_depth = tl.where((reason == STOP_RUNNING) & (num_rows > 0), depth, MAX_KEY)
            least = tl.minimum(least, tl.min(b_depth, 0))
    for start in range(0, num_sources, BLOCK):
        m_source = start + o_source < num_sources
        i_slot = tl.load(p_slot + start + o_source, mask=m_source, other=0).to(tl.int64)
        p_line = p_ints + i_slot * NUM_INTS
        reason = tl.load(p_line + INT_REASON, mask=m_source, other=0)
        num_rows = tl.load(p_line + INT_NUM_ROWS, mask=m_source, other=0)
        depth = tl.load(p_line + INT_DEPTH, mask=m_source, other=0)
        waited = tl.load(p_line + INT_WAITED, mask=m_source, other=0)
        num_rows = tl.where(reason == STOP_RUNNING, num_rows, 0)
        is_due = num_rows > 0
        if ONLY_LEAST:
            is_due &= (depth == least) | (waited >= max_wait)
        b_key = -waited if ORDER == 0 else ORDER * depth
        b_key = tl.where(waited >= max_wait, MIN_KEY, b_key)
        tl.store(p_key + start + o_source, tl.where(is_due, b_key, MAX_KEY), mask=m_source)
        tl.store(p_rows + start + o_source, num_rows, mask=m_source)
        tl.store(p_waited + start + o_source, waited, mask=m_source)
    # every thread sees all keys
    tl.debug_barrier()
    for start in range(0, num_sources, BLOCK):
        o_one = start + o_source
        m_source = o_one < num_sources
        b_key = tl.load(p_key + o_one, mask=m_source, other=MAX_KEY)
        num_rows = tl.load(p_rows + o_one, mask=m_source, other=0)
        b_before = tl.zeros([BLOCK], tl.int32)
        for other in range(0, num_sources, TILE_SOURCES):
            o_other = other + tl.arange(0, TILE_SOURCES)
            b_other = tl.load(p_key + o_other, mask=o_other < num_sources, other=MAX_KEY)[None, :]
            b_rows = tl.load(p_rows + o_other, mask=o_other < num_sources, other=0)[None, :]
            is_tied = (b_other == b_key[:, None]) & (o_other[None, :] < o_one[:, None])
            is_before = (b_other < b_key[:, None]) | is_tied
            b_before += tl.sum(tl.where(is_before, b_rows, 0), 1)
        moves = (b_key < MAX_KEY) & (b_before + num_rows <= most_rows)
        slot = tl.load(p_slot + o_one, mask=m_source, other=0)
        tl.store(p_moved + o_one, tl.where(moves, slot, 0), mask=m_source)
        tl.store(p_moved_rows + o_one, tl.where(moves, num_rows, 0), mask=m_source)
        waited = tl.load(p_waited + o_one, mask=m_source, other=0)
        p_line = p_ints + slot.to(tl.int64) * NUM_INTS
        tl.store(p_line + INT_WAITED, tl.where(moves, 0, waited + 1), mask=m_source)


@triton.jit
def read_limits(
    beams,
    lines,
    p_line,
    p_floats,
    i_slot,
    max_prefix,
    max_early,
    REFILLS: tl.constexpr,
):
    """Store what `select` needs of one beam."""
    i_source = tl.program_id(0)
    depth = tl.load(p_line + INT_DEPTH)
    num_generated = depth - tl.load(p_line + INT_PREFIX_LENGTH)
    width = tl.load(p_line + INT_WIDTH)
    step = tl.maximum(num_generated, 0)
    is_early = step < tl.minimum(tl.load(p_line + INT_NUM_EARLY_WIDTHS), max_early)
    early = tl.load(beams.early_width + i_slot * max_early + step, mask=is_early, other=0)
    width = tl.where(is_early, early, width)
    if not REFILLS:
        width -= tl.load(p_line + INT_NUM_FOUND)
    is_forced = depth < tl.load(p_line + INT_SCORED_FROM)
    p_given = beams.prefix + i_slot * max_prefix + tl.minimum(depth, max_prefix - 1)
    given = tl.load(p_given, mask=is_forced, other=-1)
    tl.store(lines.width + i_source, tl.maximum(width, 0))
    tl.store(lines.max_candidates + i_source, tl.load(p_line + INT_MAX_CANDIDATES))
    tl.store(lines.margin + i_source, tl.load(p_floats + FLOAT_MARGIN))
    tl.store(lines.local_margin + i_source, tl.load(p_floats + FLOAT_LOCAL_MARGIN))
    tl.store(lines.best_finished + i_source, tl.load(p_floats + FLOAT_BEST_FINISHED))
    tl.store(lines.forced + i_source, given)
    is_banned = num_generated < tl.load(p_line + INT_MIN_LENGTH)
    tl.store(lines.ban_eos + i_source, is_banned)


@triton.jit
def count_before(beams, p_slot, num_sources, num_slots, COLUMN: tl.constexpr):
    """Sum a column over the sources before this one, and over all of them."""
    num_before, num_all = 0, 0
    for start in range(0, num_sources, BLOCK_SOURCES):
        o_source = start + tl.arange(0, BLOCK_SOURCES)
        i_slot = tl.load(p_slot + o_source, mask=o_source < num_sources, other=-1).to(tl.int64)
        m_slot = (i_slot >= 0) & (i_slot < num_slots)
        b_count = tl.load(beams.ints + i_slot * NUM_INTS + COLUMN, mask=m_slot, other=0)
        num_before += tl.sum(tl.where(o_source < tl.program_id(0), b_count, 0), 0)
        num_all += tl.sum(b_count, 0)
    return num_before, num_all


@triton.jit
def read_entries(
    tree,
    beams,
    rows,
    entries,
    i_slot,
    first_row,
    first_entry,
    depth,
    num_entries,
    num_rows_out,
    num_entries_out,
    max_nodes,
    max_entries,
    BLOCK_ENTRIES: tl.constexpr,
):
    """Store the entries of one beam, and its rows."""
    o_entry = tl.arange(0, BLOCK_ENTRIES)
    p_entry = i_slot * max_entries + o_entry
    m_alive = tl.load(beams.is_alive + p_entry, mask=o_entry < max_entries, other=0) != 0
    o_row = first_row + exclusive_sum(m_alive.to(tl.int32))
    m_row = m_alive & (o_row < num_rows_out)
    node = tl.load(tree.row_node + p_entry, mask=m_row, other=0)
    m_node = m_row & (node >= 0) & (node < max_nodes)
    token = tl.load(tree.token + i_slot * max_nodes + node, mask=m_node, other=0)
    tl.store(rows.token + o_row, token, mask=m_row)
    tl.store(rows.depth + o_row, depth + tl.zeros([BLOCK_ENTRIES], tl.int32), mask=m_row)
    tl.store(rows.row_slot + o_row, i_slot.to(tl.int32), mask=m_row)
    tl.store(rows.entry + o_row, o_entry, mask=m_row)
    tl.store(rows.node + o_row, node, mask=m_row)
    cell = tl.load(tree.row_cell + p_entry, mask=m_row, other=-1)
    tl.store(rows.cell + o_row, cell, mask=m_row)
    o_place = first_entry + o_entry
    m_entry = (o_entry < tl.minimum(num_entries, max_entries)) & (o_place < num_entries_out)
    score = tl.load(beams.score + p_entry, mask=m_entry, other=0.0)
    tl.store(entries.score + o_place, score, mask=m_entry)
    tl.store(entries.is_ended + o_place, ~m_alive, mask=m_entry)


@triton.jit
def pad(rows, entries, num_rows, num_entries, num_rows_out, num_entries_out, BLOCK: tl.constexpr):
    """Fill the places that no beam needs; each program fills some."""
    begin, step = tl.program_id(0) * BLOCK, tl.num_programs(0) * BLOCK
    for start in range(num_rows + begin, num_rows_out, step):
        o_row = start + tl.arange(0, BLOCK)
        m_row = o_row < num_rows_out
        tl.store(rows.token + o_row, 0, mask=m_row)
        tl.store(rows.depth + o_row, 0, mask=m_row)
        tl.store(rows.row_slot + o_row, 0, mask=m_row)
        tl.store(rows.entry + o_row, 0, mask=m_row)
        tl.store(rows.node + o_row, 0, mask=m_row)
        tl.store(rows.cell + o_row, -1, mask=m_row)
    for start in range(num_entries + begin, num_entries_out, step):
        o_entry = start + tl.arange(0, BLOCK)
        m_entry = o_entry < num_entries_out
        tl.store(entries.score + o_entry, 0.0, mask=m_entry)
        tl.store(entries.is_ended + o_entry, False, mask=m_entry)


@begins_early
@triton.jit(
    do_not_specialize=[
        "num_sources",
        "num_slots",
        "num_rows_out",
        "num_entries_out",
        "max_nodes",
        "max_entries",
        "max_prefix",
        "max_early",
    ],
    do_not_specialize_on_alignment=["p_slot"],
)
def read_kernel(
    tree,
    beams,
    rows,
    entries,
    p_slot,
    num_sources,
    num_slots,
    num_rows_out,
    num_entries_out,
    max_nodes,
    max_entries,
    max_prefix,
    max_early,
    REFILLS: tl.constexpr,
    BLOCK_ENTRIES: tl.constexpr,
    BLOCK_PADDING: tl.constexpr,
):
    """One program per source, which counts the rows and entries of those before it."""
    await_kernels()
    i_source = tl.program_id(0)
    first_row, num_rows = count_before(beams, p_slot, num_sources, num_slots, INT_NUM_ROWS)
    first_entry, num_entries = count_before(beams, p_slot, num_sources, num_slots, INT_NUM_ENTRIES)
    if i_source == 0:
        tl.store(rows.offset + num_sources, num_rows)
        tl.store(entries.offset + num_sources, num_entries)
    pad(rows, entries, num_rows, num_entries, num_rows_out, num_entries_out, BLOCK_PADDING)
    if i_source < num_sources:
        tl.store(rows.offset + i_source, first_row)
        tl.store(entries.offset + i_source, first_entry)
        i_slot = tl.load(p_slot + i_source).to(tl.int64)
        i_slot = tl.where((i_slot >= 0) & (i_slot < num_slots), i_slot, 0)
        p_line = beams.ints + i_slot * NUM_INTS
        p_floats = beams.floats + i_slot * NUM_FLOATS
        read_limits(beams, entries, p_line, p_floats, i_slot, max_prefix, max_early, REFILLS)
        read_entries(
            tree,
            beams,
            rows,
            entries,
            i_slot,
            first_row,
            first_entry,
            tl.load(p_line + INT_DEPTH),
            tl.load(p_line + INT_NUM_ENTRIES),
            num_rows_out,
            num_entries_out,
            max_nodes,
            max_entries,
            BLOCK_ENTRIES,
        )


@begins_early
@triton.jit(do_not_specialize=["num_sources"], do_not_specialize_on_alignment=["p_slot"])
def report_kernel(
    p_report,
    p_ints,
    p_num_pages,
    p_num_free_pages,
    p_slot,
    num_sources,
    BLOCK: tl.constexpr,
):
    await_kernels()
    o_source = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        tl.store(p_report, tl.load(p_num_free_pages))
    m_source = o_source < num_sources
    i_slot = tl.load(p_slot + o_source, mask=m_source, other=0).to(tl.int64)
    p_line = p_report + 1 + o_source * (NUM_REPORTED + 1)
    for column in tl.static_range(NUM_REPORTED):
        number = tl.load(p_ints + i_slot * NUM_INTS + column, mask=m_source)
        tl.store(p_line + column, number, mask=m_source)
    num_pages = tl.load(p_num_pages + i_slot, mask=m_source)
    tl.store(p_line + NUM_REPORTED, num_pages, mask=m_source)


def beam_plan(ints: Tensor, slot: Tensor, rules: Any) -> tuple[Tensor, Tensor]:
    """See `pybeam.backends.Backend.beam_plan`; `rules` are `PlanRules`."""
    num_sources = slot.numel()
    scratch, out = slot.new_empty(3, num_sources), slot.new_empty(2, num_sources)
    if num_sources:
        block = min(BLOCK_SOURCES.value, max(16, triton.next_power_of_2(num_sources)))
        plan_kernel[(1,)](
            ints,
            slot.contiguous(),
            *scratch,
            *out,
            num_sources,
            rules.most_rows,
            rules.max_wait,
            ORDER=int(rules.order),
            ONLY_LEAST=bool(rules.only_least),
            BLOCK=block,
        )
    moved, num_rows = out
    return moved, num_rows


def beam_read(tree: Any, beams: Any, slot: Tensor, rows: Any, entries: Any, refills: bool) -> None:
    """See `pybeam.backends.Backend.beam_read`; `rows` and `entries` are empty arrays of its results."""
    num_sources, max_entries = slot.numel(), beams.score.shape[1]
    block = max(16, triton.next_power_of_2(max_entries))
    read_kernel[(max(1, num_sources),)](
        tree,
        beams,
        rows,
        entries,
        slot.contiguous(),
        num_sources,
        beams.ints.shape[0],
        rows.token.numel(),
        entries.score.numel(),
        tree.token.shape[1],
        max_entries,
        beams.prefix.shape[1],
        beams.early_width.shape[1],
        REFILLS=bool(refills),
        BLOCK_ENTRIES=block,
        BLOCK_PADDING=64,
        num_warps=min(16, triton.cdiv(block, WARP_ENTRIES)),
    )


def beam_report(tree: Any, ints: Tensor, slot: Tensor) -> Tensor:
    """See `pybeam.backends.Backend.beam_report`."""
    num_sources = slot.numel()
    report = slot.new_empty(1 + (NUM_REPORTED.value + 1) * num_sources)
    report_kernel[(max(1, triton.cdiv(num_sources, BLOCK_REPORTED)),)](
        report,
        ints,
        tree.num_pages,
        tree.num_free_pages,
        slot.contiguous(),
        num_sources,
        BLOCK=BLOCK_REPORTED,
        num_warps=1,
    )
    return report
