"""Reading logits: log-sum-exp and group maxima of one slice of a row, in one pass.

A row is read in *packs* of 16 bytes that are aligned in memory, whatever the stride: pack 0 begins
`shift` elements before the row. The packs that one lane of a program reads are a *group*, and their largest
logit is its *peak*.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from pybeam.triton_kernels.arithmetic import exp_shifted
from pybeam.triton_kernels.select.options import MAX_EOS

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
def absorb(b_logit, b_peak, b_sum):
    """Update the state of every lane with its logits [LANES, d, PACK]."""
    b_new_peak = tl.maximum(b_peak, tl.max(tl.max(b_logit, 2), 1))
    b_exp = exp_shifted(b_logit, b_new_peak[:, None, None])
    b_sum = b_sum * exp_shifted(b_peak, b_new_peak) + tl.sum(tl.sum(b_exp, 2), 1)
    return b_new_peak, b_sum


@triton.jit
def absorb_edge(row, edge, b_peak, b_sum, PACK: tl.constexpr):
    """Update the state with a pack that reaches beyond the row, element by element."""
    b_pack = tl.arange(0, LANES)[:, None] + edge // LANES * LANES
    o_logit = b_pack[:, :, None] * PACK + tl.arange(0, PACK)[None, None, :]
    m_logit = (b_pack == edge)[:, :, None] & (o_logit >= row.shift)
    m_logit = m_logit & (o_logit < row.shift + row.num_columns)
    b_logit = tl.load(row.pack0 + o_logit, mask=m_logit, other=-float("inf")).to(tl.float32)
    return absorb(b_logit, b_peak, b_sum)


@triton.jit
def read_slice(row, i_slice, p_peak, p_stat, bans_eos, eos, PACK: tl.constexpr):
    """Write the peaks [LANES] and (peak, sum of exp) of a slice of a row.

    A NaN or +inf makes the sum NaN. The peak of a group that holds banned tokens is NaN: not known.
    """
    slice_packs = row.num_tiles * (DEPTH * LANES)
    begin, end = i_slice * slice_packs, (i_slice + 1) * slice_packs
    b_peak = tl.full([LANES], -float("inf"), tl.float32)
    b_sum = tl.zeros([LANES], tl.float32)
    first_full = tl.where(row.shift > 0, 1, 0)
    last = (row.shift + row.num_columns) // PACK  # the pack in which the row ends
    if (begin == 0) & (first_full > 0):
        b_peak, b_sum = absorb_edge(row, 0, b_peak, b_sum, PACK)
    # lanes first: the compiler gives that dimension to the threads, and the depth to registers
    o_pack = tl.arange(0, LANES)[:, None] + tl.arange(0, DEPTH)[None, :] * LANES
    for start in range(begin, tl.minimum(end, last), DEPTH * LANES):
        b_pack = start + o_pack
        m_pack = (b_pack >= first_full) & (b_pack < last)
        o_logit = tl.arange(0, PACK)[None, None, :]
        p_logit = row.pack0 + (b_pack * PACK)[:, :, None] + o_logit
        b_logit = tl.load(p_logit, mask=m_pack[:, :, None], other=-float("inf")).to(tl.float32)
        b_peak, b_sum = absorb(b_logit, b_peak, b_sum)
    if (begin <= last) & (last < end) & (last >= first_full):
        b_peak, b_sum = absorb_edge(row, last, b_peak, b_sum, PACK)
    peak = tl.max(b_peak, 0)
    tl.store(p_stat, peak)
    tl.store(p_stat + 1, tl.sum(b_sum * exp_shifted(b_peak, peak), 0))
    o_lane = tl.arange(0, LANES)
    for i in tl.static_range(MAX_EOS):
        pack = (row.shift + eos[i]) // PACK
        is_here = bans_eos & (eos[i] >= 0) & (pack >= begin) & (pack < end)
        b_peak = tl.where(is_here & (o_lane == pack % LANES), float("nan"), b_peak)
    tl.store(p_peak + o_lane, b_peak)
