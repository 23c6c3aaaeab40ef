"""Reading logits: log-sum-exp and group maxima of one slice of a row, in one pass.

A row is read in *packs* of 16 bytes that are aligned in memory, whatever the stride: pack 0 begins
`shift` elements before the row. Every lane of the program keeps the largest logit of all packs that
it read, and the first pack that holds it: that is the *delegate* of its *group*. The n groups with
the best delegates hold the n best logits of the row (value descending, then token ascending).
"""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exp_shifted
from pybeam.triton_kernels.select.keys import LAST, key_of

LANES = tl.constexpr(128)
DEPTH = tl.constexpr(4)  # packs of one lane in one tile
MAX_SLICES = tl.constexpr(32)  # the most programs that read one row


class Row(NamedTuple):
    """Where a row of logits lies."""

    pack0: tl.tensor  # a pointer to its first pack
    shift: tl.tensor  # logits of the first pack before it
    num_columns: tl.tensor
    num_tiles: tl.tensor  # of a slice


@triton.jit
def absorb(b_logit, b_pack, b_peak, b_sum, b_first):
    """Update the state of every lane with logits [LANES, d, PACK] of these packs [LANES, d]."""
    b_pack_peak = tl.max(b_logit, 2)
    b_tile_peak = tl.max(b_pack_peak, 1)
    b_tile_first = tl.min(tl.where(b_pack_peak == b_tile_peak[:, None], b_pack, LAST), 1)
    # packs come in order, so an equal logit loses to the earlier one
    b_first = tl.where(b_tile_peak > b_peak, b_tile_first, b_first)
    b_new_peak = tl.maximum(b_peak, b_tile_peak)
    b_exp = exp_shifted(b_logit, b_new_peak[:, None, None])
    b_sum = b_sum * exp_shifted(b_peak, b_new_peak) + tl.sum(tl.sum(b_exp, 2), 1)
    return b_new_peak, b_sum, b_first


@triton.jit
def absorb_edge(row, edge, b_peak, b_sum, b_first, PACK: tl.constexpr):
    """Update the state with a pack that reaches beyond the row, element by element."""
    b_pack = tl.arange(0, LANES)[:, None] + edge // LANES * LANES
    o_logit = b_pack[:, :, None] * PACK + tl.arange(0, PACK)[None, None, :]
    m_logit = (b_pack == edge)[:, :, None] & (o_logit >= row.shift)
    m_logit = m_logit & (o_logit < row.shift + row.num_columns)
    b_logit = tl.load(row.pack0 + o_logit, mask=m_logit, other=-float("inf")).to(tl.float32)
    return absorb(b_logit, b_pack, b_peak, b_sum, b_first)


@triton.jit
def read_slice(row, i_slice, p_key, p_stat, PACK: tl.constexpr):
    """Write the delegates' keys [LANES] and (peak, sum of exp) of a slice of a row.

    The index of a key is the pack of the delegate. A NaN or +inf makes the sum NaN.
    """
    slice_packs = row.num_tiles * (DEPTH * LANES)
    begin, end = i_slice * slice_packs, (i_slice + 1) * slice_packs
    b_peak = tl.full([LANES], -float("inf"), tl.float32)
    b_sum = tl.zeros([LANES], tl.float32)
    b_first = tl.zeros([LANES], tl.int32)
    first_full = tl.where(row.shift > 0, 1, 0)
    last = (row.shift + row.num_columns) // PACK  # the pack in which the row ends
    if (begin == 0) & (first_full > 0):
        b_peak, b_sum, b_first = absorb_edge(row, 0, b_peak, b_sum, b_first, PACK)
    # lanes first: the compiler gives that dimension to the threads, and the depth to registers
    o_pack = tl.arange(0, LANES)[:, None] + tl.arange(0, DEPTH)[None, :] * LANES
    for start in range(begin, tl.minimum(end, last), DEPTH * LANES):
        b_pack = start + o_pack
        m_pack = (b_pack >= first_full) & (b_pack < last)
        o_logit = tl.arange(0, PACK)[None, None, :]
        p_logit = row.pack0 + (b_pack * PACK)[:, :, None] + o_logit
        b_logit = tl.load(p_logit, mask=m_pack[:, :, None], other=-float("inf")).to(tl.float32)
        b_peak, b_sum, b_first = absorb(b_logit, b_pack, b_peak, b_sum, b_first)
    if (begin <= last) & (last < end) & (last >= first_full):
        b_peak, b_sum, b_first = absorb_edge(row, last, b_peak, b_sum, b_first, PACK)
    peak = tl.max(b_peak, 0)
    tl.store(p_key + tl.arange(0, LANES), key_of(b_peak, b_first))
    tl.store(p_stat, peak)
    tl.store(p_stat + 1, tl.sum(b_sum * exp_shifted(b_peak, peak), 0))


@triton.jit
def merge_slices(p_stat, num_slices):
    """Return peak and log of the sum of exp of a row, in an order that does not depend on timing."""
    o_slice = tl.arange(0, MAX_SLICES)
    m_slice = o_slice < num_slices
    b_peak = tl.load(p_stat + 2 * o_slice, mask=m_slice, other=-float("inf"), cache_modifier=".cg")
    b_sum = tl.load(p_stat + 2 * o_slice + 1, mask=m_slice, other=0.0, cache_modifier=".cg")
    peak = tl.max(b_peak, 0)
    return peak, tl.log(tl.sum(b_sum * exp_shifted(b_peak, peak), 0))
