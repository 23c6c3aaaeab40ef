"""The kernels of `beam_read` and `beam_report`: what a step needs of beams, and what the host needs."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exclusive_sum
from pybeam.triton_kernels.beam.columns import (
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
    INT_SCORED_FROM,
    INT_WAITED,
    INT_WIDTH,
    NUM_FLOATS,
    NUM_INTS,
)
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

# the first columns
NUM_REPORTED = INT_WAITED
BLOCK_SOURCES = tl.constexpr(128)


@triton.jit
def read_limits(
    beams, lines, p_line, p_floats, i_slot, max_prefix, max_early, REFILLS: tl.constexpr
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
    max_candidates = tl.load(p_line + INT_MAX_CANDIDATES)
    is_banned = num_generated < tl.load(p_line + INT_MIN_LENGTH)
    margin, local_margin = tl.load(p_floats + FLOAT_MARGIN), tl.load(p_floats + FLOAT_LOCAL_MARGIN)
    best_finished = tl.load(p_floats + FLOAT_BEST_FINISHED)
    tl.store(lines.width + i_source, tl.maximum(width, 0))
    tl.store(lines.max_candidates + i_source, max_candidates)
    tl.store(lines.margin + i_source, margin)
    tl.store(lines.local_margin + i_source, local_margin)
    tl.store(lines.best_finished + i_source, best_finished)
    tl.store(lines.forced + i_source, given)
    tl.store(lines.ban_eos + i_source, is_banned)


@triton.jit
def count_before(beams, p_slot, num_sources, num_slots):
    """Count the rows and the entries of the sources before this one, and then those of all of them."""
    rows_before, rows_all, entries_before, entries_all = 0, 0, 0, 0
    for start in range(0, num_sources, BLOCK_SOURCES):
        o_source = start + tl.arange(0, BLOCK_SOURCES)
        i_slot = tl.load(p_slot + o_source, mask=o_source < num_sources, other=-1).to(tl.int64)
        m_slot = (i_slot >= 0) & (i_slot < num_slots)
        p_line = beams.ints + i_slot * NUM_INTS
        b_rows = tl.load(p_line + INT_NUM_ROWS, mask=m_slot, other=0)
        b_entries = tl.load(p_line + INT_NUM_ENTRIES, mask=m_slot, other=0)
        m_before = o_source < tl.program_id(0)
        rows_before += tl.sum(tl.where(m_before, b_rows, 0), 0)
        rows_all += tl.sum(b_rows, 0)
        entries_before += tl.sum(tl.where(m_before, b_entries, 0), 0)
        entries_all += tl.sum(b_entries, 0)
    return (rows_before, entries_before), (rows_all, entries_all)


class Entries(NamedTuple):
    """The entries of one beam, as they are loaded before anything waits for them."""

    depth: tl.tensor
    num: tl.tensor
    is_alive: tl.tensor
    score: tl.tensor
    node: tl.tensor
    cell: tl.tensor


@triton.jit
def load_entries(tree, beams, i_slot, max_entries, BLOCK_ENTRIES: tl.constexpr):
    p_line = beams.ints + i_slot * NUM_INTS
    o_entry = tl.arange(0, BLOCK_ENTRIES)
    p_entry, m_entry = i_slot * max_entries + o_entry, o_entry < max_entries
    return Entries(
        tl.load(p_line + INT_DEPTH),
        tl.load(p_line + INT_NUM_ENTRIES),
        tl.load(beams.is_alive + p_entry, mask=m_entry, other=0),
        tl.load(beams.score + p_entry, mask=m_entry, other=0.0),
        tl.load(tree.row_node + p_entry, mask=m_entry, other=0),
        tl.load(tree.row_cell + p_entry, mask=m_entry, other=-1),
    )


@triton.jit
def store_entries(
    tree,
    own,
    rows,
    entries,
    i_slot,
    first,
    room,
    max_nodes,
    max_entries,
    BLOCK_ENTRIES: tl.constexpr,
):
    """Store the entries of one beam, which are its `own`, and its rows.

    `first` are the places of the first row and the first entry, `room` the numbers of places that there are.
    """
    first_row, first_entry = first
    num_rows_out, num_entries_out = room
    o_entry, m_alive, node = tl.arange(0, BLOCK_ENTRIES), own.is_alive != 0, own.node
    o_row = first_row + exclusive_sum(m_alive.to(tl.int32))
    m_row = m_alive & (o_row < num_rows_out)
    m_node = m_row & (node >= 0) & (node < max_nodes)
    token = tl.load(tree.token + i_slot * max_nodes + node, mask=m_node, other=0)
    tl.store(rows.token + o_row, token, mask=m_row)
    tl.store(rows.position + o_row, own.depth + tl.zeros([BLOCK_ENTRIES], tl.int32), mask=m_row)
    tl.store(rows.row_slot + o_row, i_slot.to(tl.int32), mask=m_row)
    tl.store(rows.entry + o_row, o_entry, mask=m_row)
    tl.store(rows.node + o_row, node, mask=m_row)
    tl.store(rows.cell + o_row, own.cell, mask=m_row)
    o_place = first_entry + o_entry
    m_entry = (o_entry < tl.minimum(own.num, max_entries)) & (o_place < num_entries_out)
    tl.store(entries.score + o_place, own.score, mask=m_entry)
    tl.store(entries.is_ended + o_place, ~m_alive, mask=m_entry)


@triton.jit
def pad(rows, entries, num_rows, num_entries, num_rows_out, num_entries_out, BLOCK: tl.constexpr):
    """Fill the places that no beam needs; each program fills some."""
    begin, step = tl.program_id(0) * BLOCK, tl.num_programs(0) * BLOCK
    for start in range(num_rows + begin, num_rows_out, step):
        o_row = start + tl.arange(0, BLOCK)
        m_row = o_row < num_rows_out
        tl.store(rows.token + o_row, 0, mask=m_row)
        tl.store(rows.position + o_row, 0, mask=m_row)
        tl.store(rows.row_slot + o_row, 0, mask=m_row)
        tl.store(rows.entry + o_row, 0, mask=m_row)
        tl.store(rows.node + o_row, 0, mask=m_row)
        tl.store(rows.cell + o_row, -1, mask=m_row)
    for start in range(num_entries + begin, num_entries_out, step):
        o_entry = start + tl.arange(0, BLOCK)
        m_entry = o_entry < num_entries_out
        tl.store(entries.score + o_entry, 0.0, mask=m_entry)
        tl.store(entries.is_ended + o_entry, False, mask=m_entry)


@one_variant(anywhere=["p_slot"])
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
    # loads come first, so that they wait together
    i_slot = tl.load(p_slot + i_source, mask=i_source < num_sources, other=0).to(tl.int64)
    i_slot = tl.where((i_slot >= 0) & (i_slot < num_slots), i_slot, 0)
    own = load_entries(tree, beams, i_slot, max_entries, BLOCK_ENTRIES)
    first, counts = count_before(beams, p_slot, num_sources, num_slots)
    num_rows, num_entries = counts
    pad(rows, entries, num_rows, num_entries, num_rows_out, num_entries_out, BLOCK_PADDING)
    if i_source == 0:
        tl.store(rows.offset + num_sources, num_rows)
        tl.store(entries.offset + num_sources, num_entries)
    if i_source < num_sources:
        tl.store(rows.offset + i_source, first[0])
        tl.store(entries.offset + i_source, first[1])
        p_line = beams.ints + i_slot * NUM_INTS
        p_floats = beams.floats + i_slot * NUM_FLOATS
        read_limits(beams, entries, p_line, p_floats, i_slot, max_prefix, max_early, REFILLS)
        room = num_rows_out, num_entries_out
        store_entries(
            tree, own, rows, entries, i_slot, first, room, max_nodes, max_entries, BLOCK_ENTRIES
        )


@one_variant(anywhere=["p_slot"])
def report_kernel(
    p_report, p_ints, p_num_pages, p_num_free_pages, p_slot, num_sources, BLOCK: tl.constexpr
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
