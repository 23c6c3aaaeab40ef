"""Find the entry and the beam of a row."""

import triton
import triton.language as tl

from pybeam.triton_kernels.select.keys import LAST

ENTRIES = tl.constexpr(1024)
# entries of a beam, or columns of its survivors, that are handled at once
BLOCK = tl.constexpr(256)


@triton.jit
def entry_of(p_is_ended, i_row, num_entries):
    """Find the entry of a row: the live entry with i_row live entries before it.

    Returns `num_entries` if there is none.
    """
    entry = i_row * 0
    num_live = i_row * 0
    start = i_row * 0
    while (num_live <= i_row) & (start < num_entries):
        o_entry = start + tl.arange(0, ENTRIES)
        m_entry = o_entry < num_entries
        b_live = 1 - tl.load(p_is_ended + o_entry, mask=m_entry, other=1).to(tl.int32)
        b_row = num_live + tl.cumsum(b_live, 0) - 1
        entry += tl.sum(tl.where((b_live > 0) & (b_row == i_row), o_entry, 0), 0)
        num_live += tl.sum(b_live, 0)
        start += ENTRIES
    return tl.where(num_live > i_row, entry, num_entries)


@triton.jit
def beam_of(p_offset, entry, num_beams):
    """Find the beam of an entry. Its number is the number of beams that end at or before the entry."""
    beam = entry * 0
    for start in range(0, num_beams, ENTRIES):
        o_beam = start + tl.arange(0, ENTRIES)
        b_end = tl.load(p_offset + 1 + o_beam, mask=o_beam < num_beams, other=LAST)
        beam += tl.sum((b_end <= entry).to(tl.int32), 0)
    return beam


@triton.jit
def count_live(p_is_ended, begin, entry, end, has_ended):
    """Count the entries that have not ended: from begin to an entry, and from begin to end."""
    num_before, num_live = entry - begin, end - begin
    if has_ended:
        for start in range(begin, end, BLOCK):
            o_entry = start + tl.arange(0, BLOCK)
            b_ended = tl.load(p_is_ended + o_entry, mask=o_entry < end, other=0).to(tl.int32)
            num_before -= tl.sum(tl.where(o_entry < entry, b_ended, 0), 0)
            num_live -= tl.sum(b_ended, 0)
    return num_before, num_live
