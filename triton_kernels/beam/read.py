"""The kernels of `beam_read` and `beam_report`: what a step needs of beams, and what the host needs."""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exclusive_sum
from pybeam.triton_kernels.beam.arrivals import arrive
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
    INT_PREFIX_LENGTH,
    INT_SCORED_FROM,
    INT_WAITED,
    INT_WIDTH,
    NUM_FLOATS,
    NUM_INTS,
)
from pybeam.triton_kernels.beam.plan import choose, load_sources, store_waited
from pybeam.triton_kernels.dependent_launch import await_kernels, one_variant

# the first columns
NUM_REPORTED = INT_WAITED


class Limits(NamedTuple):
    """What `select` needs of one beam."""

    width: tl.tensor
    max_candidates: tl.tensor
    margin: tl.tensor
    local_margin: tl.tensor
    best_finished: tl.tensor
    forced: tl.tensor
    ban_eos: tl.tensor


@triton.jit
def load_limits(beams, i_slot, max_prefix, max_early, REFILLS: tl.constexpr):
    p_line, p_floats = beams.ints + i_slot * NUM_INTS, beams.floats + i_slot * NUM_FLOATS
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
    return Limits(
        tl.maximum(width, 0),
        tl.load(p_line + INT_MAX_CANDIDATES),
        tl.load(p_floats + FLOAT_MARGIN),
        tl.load(p_floats + FLOAT_LOCAL_MARGIN),
        tl.load(p_floats + FLOAT_BEST_FINISHED),
        tl.load(p_given, mask=is_forced, other=-1),
        num_generated < tl.load(p_line + INT_MIN_LENGTH),
    )


@triton.jit
def store_limits(entries, limits, moves):
    """A source that waits has those of the null slot."""
    i_source = tl.program_id(0)
    tl.store(entries.width + i_source, tl.where(moves, limits.width, 0))
    tl.store(entries.max_candidates + i_source, tl.where(moves, limits.max_candidates, 0))
    tl.store(entries.margin + i_source, tl.where(moves, limits.margin, 0.0))
    tl.store(entries.local_margin + i_source, tl.where(moves, limits.local_margin, 0.0))
    tl.store(entries.best_finished + i_source, tl.where(moves, limits.best_finished, 0.0))
    tl.store(entries.forced + i_source, tl.where(moves, limits.forced, -1))
    tl.store(entries.ban_eos + i_source, moves & limits.ban_eos)


@triton.jit
def count_before(b_count):
    """Sum the counts of the sources before this one, and those of all."""
    o_source = tl.arange(0, b_count.shape[0])
    return tl.sum(tl.where(o_source < tl.program_id(0), b_count, 0), 0), tl.sum(b_count, 0)


class Entries(NamedTuple):
    """The entries of one beam, as they are loaded before anything waits for them."""

    depth: tl.tensor
    num: tl.tensor
    is_alive: tl.tensor
    score: tl.tensor
    node: tl.tensor
    cell: tl.tensor
    token: tl.tensor


@triton.jit
def load_entries(tree, beams, i_slot, max_nodes, max_entries, BLOCK_ENTRIES: tl.constexpr):
    p_line = beams.ints + i_slot * NUM_INTS
    o_entry = tl.arange(0, BLOCK_ENTRIES)
    p_entry, m_entry = i_slot * max_entries + o_entry, o_entry < max_entries
    is_alive = tl.load(beams.is_alive + p_entry, mask=m_entry, other=0) != 0
    node = tl.load(tree.row_node + p_entry, mask=m_entry, other=0)
    m_node = is_alive & (node >= 0) & (node < max_nodes)
    return Entries(
        tl.load(p_line + INT_DEPTH),
        tl.load(p_line + INT_NUM_ENTRIES),
        is_alive,
        tl.load(beams.score + p_entry, mask=m_entry, other=0.0),
        node,
        tl.load(tree.row_cell + p_entry, mask=m_entry, other=-1),
        tl.load(tree.token + i_slot * max_nodes + node, mask=m_node, other=0),
    )


@triton.jit
def store_entries(
    own,
    moves,
    rows,
    entries,
    i_slot,
    first,
    room,
    max_entries,
    IS_PATH: tl.constexpr,
    BLOCK_ENTRIES: tl.constexpr,
):
    """Store the entries of one beam, which are its `own`, and its rows.

    `first` are the places of the first row and the first entry, `room` the numbers of places that there are.
    """
    first_row, first_entry = first
    num_rows_out, num_entries_out = room
    o_entry, m_alive = tl.arange(0, BLOCK_ENTRIES), own.is_alive & moves
    o_row = first_row + exclusive_sum(m_alive.to(tl.int32))
    m_row = m_alive & (o_row < num_rows_out)
    tl.store(rows.token + o_row, own.token, mask=m_row)
    b_position = own.depth + (o_entry if IS_PATH else tl.zeros([BLOCK_ENTRIES], tl.int32))
    tl.store(rows.position + o_row, b_position, mask=m_row)
    tl.store(rows.row_slot + o_row, i_slot.to(tl.int32), mask=m_row)
    tl.store(rows.entry + o_row, o_entry, mask=m_row)
    tl.store(rows.node + o_row, own.node, mask=m_row)
    tl.store(rows.cell + o_row, own.cell, mask=m_row)
    o_place = first_entry + o_entry
    m_entry = moves & (o_entry < tl.minimum(own.num, max_entries)) & (o_place < num_entries_out)
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


@one_variant(anywhere=["p_slot", "p_moved"])
def read_kernel(
    tree,
    beams,
    rows,
    entries,
    p_slot,
    p_moved,
    num_sources,
    num_slots,
    most_rows,
    max_wait,
    num_rows_out,
    num_entries_out,
    max_nodes,
    max_entries,
    max_prefix,
    max_early,
    ORDER: tl.constexpr,
    ONLY_LEAST: tl.constexpr,
    REFILLS: tl.constexpr,
    IS_PATH: tl.constexpr,
    BLOCK_SOURCES: tl.constexpr,
    BLOCK_ENTRIES: tl.constexpr,
    BLOCK_PADDING: tl.constexpr,
):
    """One program per source, which plans for all, and counts the rows and entries of those before it.

    Without an `ORDER` all sources move.
    """
    await_kernels()
    i_source = tl.program_id(0)
    # loads come first, so that they wait together
    i_slot = tl.load(p_slot + i_source, mask=i_source < num_sources, other=0).to(tl.int64)
    i_slot = tl.where((i_slot >= 0) & (i_slot < num_slots), i_slot, 0)
    sources = load_sources(beams.ints, p_slot, num_sources, num_slots, BLOCK_SOURCES)
    own = load_entries(tree, beams, i_slot, max_nodes, max_entries, BLOCK_ENTRIES)
    limits = load_limits(beams, i_slot, max_prefix, max_early, REFILLS)
    b_moves = sources.slot >= 0
    if ORDER is not None:
        b_moves = choose(sources, most_rows, max_wait, ORDER, ONLY_LEAST)
    o_source = tl.arange(0, BLOCK_SOURCES)
    moves = tl.sum(tl.where((o_source == i_source) & b_moves, 1, 0), 0) > 0
    first_row, num_rows = count_before(tl.where(b_moves, sources.num_rows, 0))
    first_entry, num_entries = count_before(tl.where(b_moves, sources.num_entries, 0))
    if ORDER is not None:
        b_others = arrive(beams, BLOCK_SOURCES)
    pad(rows, entries, num_rows, num_entries, num_rows_out, num_entries_out, BLOCK_PADDING)
    if i_source == 0:
        tl.store(rows.offset + num_sources, num_rows)
        tl.store(entries.offset + num_sources, num_entries)
    if i_source < num_sources:
        if ORDER is not None:
            tl.store(p_moved + i_source, tl.where(moves, i_slot, 0).to(tl.int32))
        tl.store(rows.offset + i_source, first_row)
        tl.store(entries.offset + i_source, first_entry)
        store_limits(entries, limits, moves)
        first, room = (first_row, first_entry), (num_rows_out, num_entries_out)
        own_place = i_slot, first, room, max_entries
        store_entries(own, moves, rows, entries, *own_place, IS_PATH, BLOCK_ENTRIES)
    if ORDER is not None:
        if tl.sum(b_others, 0) == num_sources - 1:
            store_waited(beams, sources, b_moves, num_slots)


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
